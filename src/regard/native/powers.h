// Eight numbers side by side, and logarithms and exponentials of one or eight.
#pragma once

#include <cmath>
#include <cstring>

#include "lanes.h"

// Of these functions the oldest version that the C library has: the newest of exp and log would ask for one of 2019
// (2.29), that of asinf for one of 2026 (2.43).
#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
#define OLDEST(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
#else
#define OLDEST(name) __asm__(".symver " #name "," #name "@GLIBC_2.17")
#endif
OLDEST(exp);
OLDEST(log);
OLDEST(asinf);
#endif

namespace {

// Eight numbers side by side. Those of double precision are in two halves, because compilers keep vectors of 32 bytes in
// registers and longer ones in memory.
constexpr int64_t lanes = 8, half = 4;

union Eight {
    double of[lanes];
    Four in[2];
};

INLINE float rounded(float x) { return std::nearbyint(x); }
INLINE float number(int32_t x) { return static_cast<float>(x); }
INLINE int32_t whole(float x) { return static_cast<int32_t>(x); }

// Vectors: 1.5 * 2^23 leaves no room for a fraction.
template <typename F>
INLINE F rounded(const F& x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// Natural logarithm of positive normal numbers, one or eight.
template <typename F, typename I>
INLINE F log_of(F u) {
    const I bits = bits_as<I>(u), exponent = (bits - 0x3f3504f3) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
    const F m = bits_as<F>(bits - exponent * (1 << 23));
    const F f = m - 1.0f, s = f / (2.0f + f), z = s * s;
    const F tail = z * (0.66666666f + z * (0.40000004f + z * (0.28566827f + z * 0.2333375f)));
    const F square = 0.5f * f * f;
    const F e = number(exponent);
    return e * 0.693359375f + (e * -2.12194440e-4f + (f - (square - s * (square + tail))));
}

// exp of one or eight numbers that are not positive; below -87 it is zero.
template <typename F, typename I>
INLINE F exp_of(F y) {
    const F zero = {}, least = zero - 87.0f, x = choose(y < least, least, y);
    const F k = rounded(x * 1.44269504f);
    const F r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    F p = zero + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const I bits = (whole(k) + 127) * (1 << 23);
    return choose(y < least, zero, p * bits_as<F>(bits));
}

}  // namespace
