// Logarithms and exponentials in double precision without a branch or a call, so that loops over them go in registers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common.h"

namespace {

INLINE uint64_t bits_of(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

INLINE double double_of(uint64_t bits) {
    double x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;

// Natural logarithm of positive normal numbers, to about an ulp: log(1 + f) = f - (f^2/2 - s (f^2/2 + tail)) with
// s = f / (2 + f), after the exponent is taken off.
INLINE double log_double(double u) {
    // The mantissa in [sqrt(1/2), sqrt(2)); an exponent that is not negative needs no shift with a sign.
    const uint64_t moved = bits_of(u) - 0x3fe6a09e667f3bcdull + (uint64_t(1024) << 52), exponent = moved >> 52;
    const double e = double_of(exponent | 0x4330000000000000ull) - (4503599627370496.0 + 1024.0);  // 2^52
    const double f = double_of(bits_of(u) - ((exponent - 1024) << 52)) - 1.0, s = f / (2.0 + f), z = s * s;
    double tail = 2.0 / 23;
    tail = tail * z + 2.0 / 21;
    tail = tail * z + 2.0 / 19;
    tail = tail * z + 2.0 / 17;
    tail = tail * z + 2.0 / 15;
    tail = tail * z + 2.0 / 13;
    tail = tail * z + 2.0 / 11;
    tail = tail * z + 2.0 / 9;
    tail = tail * z + 2.0 / 7;
    tail = tail * z + 2.0 / 5;
    tail = tail * z + 2.0 / 3;
    const double square = 0.5 * f * f;
    return e * ln2_high - ((square - (s * (square + z * tail) + e * ln2_low)) - f);
}

// exp of numbers up to 700; below -708 it is zero.
INLINE double exp_double(double y) {
    const double x = y < -708.0 ? -708.0 : y, magic = 6755399441055744.0;  // 1.5 * 2^52 leaves whole numbers
    const double moved = x * 1.44269504088896340736 + magic, k = moved - magic;
    const double r = (x - k * ln2_high) - k * ln2_low;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    const double scale = double_of((bits_of(moved) - bits_of(magic) + 1023) << 52);
    return y < -708.0 ? 0.0 : p * scale;
}

// u^power, and zero where u is not a normal number above zero.
INLINE double power_double(double u, double power) {
    const bool in = u > std::numeric_limits<double>::min();
    const double y = exp_double(power * log_double(in ? u : 1.0));
    return in ? y : 0.0;
}

}  // namespace
