// Numbers of half precision as they lie in memory. What is computed from them is in single precision: rows are widened
// into the memory of a thread, and results rounded to nearest, ties to even, as they are written.
#pragma once

#include <cstring>
#include <type_traits>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "common.h"

namespace {

struct Bfloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

INLINE float wider(Bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }

INLINE float wider(Float16 x) {
    const uint32_t size = x.bits & 0x7fffu, sign = uint32_t(x.bits & 0x8000u) << 16;
    // The exponent is moved by the difference of the biases; that of infinity and NaN is all ones.
    const uint32_t usual = (size << 13) + (size < 0x7c00u ? 112u << 23 : 224u << 23);
    const uint32_t tiny = bits_of(static_cast<float>(static_cast<int32_t>(size)) * 5.9604644775390625e-8f);  // 2^-24
    return float_of(sign | (size < 0x400u ? tiny : usual));
}

INLINE void narrower(float x, Bfloat16& out) {
    const uint32_t bits = bits_of(x), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    out.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

INLINE void narrower(float x, Float16& out) {
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    const uint32_t usual = (size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13;
    const uint32_t tiny = bits_of(float_of(size < 0x38800000u ? size : 0u) + 0.5f) - 0x3f000000u;  // rounds at 2^-24
    const uint32_t large = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t found = size < 0x38800000u ? tiny : size < 0x477ff000u ? usual : large;  // 2^-14, 65520
    out.bits = static_cast<uint16_t>(sign | found);
}

// n rows of `width` numbers, `step` apart, side by side in single precision.
template <typename S>
static void widen(const S* x, int64_t step, int64_t n, int64_t width, float* out) {
    for (int64_t r = 0; r < n; ++r, x += step, out += width) {
        int64_t i = 0;
#if defined(__AVX512F__)
        if constexpr (std::is_same_v<S, Float16>)
            for (; i + 16 <= width; i += 16)
                _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
#endif
        SIMD()
        for (int64_t j = i; j < width; ++j) out[j] = wider(x[j]);
    }
}

// The reverse: rows `from` apart to rows `step` apart.
template <typename S>
static void narrow(const float* x, int64_t from, int64_t n, int64_t width, S* out, int64_t step) {
    for (int64_t r = 0; r < n; ++r, x += from, out += step) {
        int64_t i = 0;
#if defined(__AVX512F__)
        if constexpr (std::is_same_v<S, Float16>)
            for (; i + 16 <= width; i += 16)
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(x + i), 0));
#endif
        SIMD()
        for (int64_t j = i; j < width; ++j) narrower(x[j], out[j]);
    }
}

}  // namespace
