// Powers of a register of numbers in (0, 1], the innermost work of entmax with any alpha.
#pragma once

#include <cmath>

#include "products.h"
#include "powers.h"

namespace {

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)

// Sixteen intervals of a binade fit in one register each, so that short polynomials are enough: the reciprocals of their
// middles, minus the logarithms of those, and the sixteenth powers of two.
alignas(64) constexpr float reciprocals[16] = {
    0.969697f, 0.9142857f, 0.8648649f, 0.82051283f, 0.7804878f, 0.74418604f, 0.7111111f, 0.68085104f,
    0.6530612f, 0.627451f, 0.6037736f, 0.58181816f, 0.5614035f, 0.5423729f, 0.52459013f, 0.50793654f};
alignas(64) constexpr float logarithms[16] = {
    0.044394076f, 0.12928301f, 0.20945333f, 0.2854022f, 0.35755205f, 0.42626476f, 0.49185306f, 0.5545889f,
    0.61470985f, 0.67242527f, 0.7279204f, 0.78135973f, 0.83289f, 0.88264304f, 0.93073744f, 0.97727984f};
alignas(64) constexpr float sixteenths[16] = {
    1.0f, 1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f,
    1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};

// The base-two logarithm of positive normal numbers: absolute error below 2e-7 where they are at most one.
INLINE Wide log2_of(const Wide& u) {
    const __m512 x = (__m512)u, exponent = _mm512_getexp_ps(x);
    const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    const __m512i which = _mm512_srli_epi32(_mm512_castps_si512(x), 19);  // its last four bits
    const __m512 inverse = _mm512_permutexvar_ps(which, _mm512_load_ps(reciprocals));
    const __m512 log = _mm512_permutexvar_ps(which, _mm512_load_ps(logarithms));
    const __m512 r = _mm512_fmsub_ps(m, inverse, _mm512_set1_ps(1.0f));
    __m512 series = _mm512_fmadd_ps(r, _mm512_set1_ps(-0.36067376f), _mm512_set1_ps(0.48089835f));
    series = _mm512_fmadd_ps(r, series, _mm512_set1_ps(-0.72134752f));
    series = _mm512_fmadd_ps(r, series, _mm512_set1_ps(1.44269504f));
    return (Wide)_mm512_fmadd_ps(r, series, _mm512_add_ps(exponent, log));
}

// Two to the power y, for y from -1e5 to 1e5; relative error below 2e-7.
INLINE Wide exp2_of(const Wide& y) {
    const __m512 x = (__m512)y, magic = _mm512_set1_ps(786432.0f);  // 1.5 * 2^19 leaves sixteenths
    const __m512 moved = _mm512_add_ps(x, magic), near = _mm512_sub_ps(moved, magic), r = _mm512_sub_ps(x, near);
    const __m512 power = _mm512_permutexvar_ps(_mm512_castps_si512(moved), _mm512_load_ps(sixteenths));
    __m512 series = _mm512_fmadd_ps(r, _mm512_set1_ps(0.05550411f), _mm512_set1_ps(0.24022651f));
    series = _mm512_fmadd_ps(r, series, _mm512_set1_ps(0.69314718f));
    return (Wide)_mm512_scalef_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, series), power, power), near);
}

// 1 / u to fourteen bits or more, which is enough for the slope of a step.
INLINE Wide reciprocal_of(const Wide& u) { return (Wide)_mm512_rcp14_ps((__m512)u); }

#elif defined(__AVX2__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)

// The same with eight intervals; coefficients are those of the least largest error.
alignas(32) constexpr float reciprocals[8] = {0.941176474f, 0.842105269f, 0.761904776f, 0.695652187f,
                                              0.639999986f, 0.592592597f, 0.551724136f, 0.516129017f};
alignas(32) constexpr float logarithms[8] = {0.0874628359f, 0.247927503f, 0.392317396f, 0.523561929f,
                                             0.643856222f,  0.754887491f, 0.857981001f, 0.954196353f};
alignas(32) constexpr float eighths[8] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                                          1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};

INLINE Wide log2_of(const Wide& u) {
    const __m256i bits = _mm256_castps_si256((__m256)u), which = _mm256_srli_epi32(bits, 20);  // its last three bits
    const __m256 exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
    const __m256i fraction = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff));
    const __m256 m = _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3f800000)));
    const __m256 inverse = _mm256_permutevar8x32_ps(_mm256_load_ps(reciprocals), which);
    const __m256 log = _mm256_permutevar8x32_ps(_mm256_load_ps(logarithms), which);
    const __m256 r = _mm256_fmsub_ps(m, inverse, _mm256_set1_ps(1.0f));
    __m256 series = _mm256_fmadd_ps(r, _mm256_set1_ps(-0.362052911f), _mm256_set1_ps(0.482143629f));
    series = _mm256_fmadd_ps(r, series, _mm256_set1_ps(-0.721345635f));
    series = _mm256_fmadd_ps(r, series, _mm256_set1_ps(1.44269397f));
    return (Wide)_mm256_fmadd_ps(r, series, _mm256_add_ps(exponent, log));
}

// For y up to 127; below -126 it is zero.
INLINE Wide exp2_of(const Wide& y) {
    const __m256 least = _mm256_set1_ps(-126.0f), x = _mm256_max_ps((__m256)y, least);
    const __m256 magic = _mm256_set1_ps(1572864.0f);  // 1.5 * 2^20 leaves eighths
    const __m256 moved = _mm256_add_ps(x, magic), r = _mm256_sub_ps(x, _mm256_sub_ps(moved, magic));
    const __m256i bits = _mm256_castps_si256(moved);
    const __m256 power = _mm256_permutevar8x32_ps(_mm256_load_ps(eighths), bits);
    __m256 series = _mm256_fmadd_ps(r, _mm256_set1_ps(0.0555114749f), _mm256_set1_ps(0.240257633f));
    series = _mm256_fmadd_ps(r, series, _mm256_set1_ps(0.693147172f));
    series = _mm256_fmadd_ps(_mm256_mul_ps(r, series), power, power);
    const __m256i exponent = _mm256_slli_epi32(_mm256_srai_epi32(bits, 3), 23);
    const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(series), exponent));
    return (Wide)_mm256_and_ps(scaled, _mm256_cmp_ps((__m256)y, least, _CMP_GE_OQ));
}

// The processor's estimate has twelve bits, and another one on each make; after a step of Newton's they agree.
INLINE Wide reciprocal_of(const Wide& u) {
    const Wide near = (Wide)_mm256_rcp_ps((__m256)u);
    return near * (2.0f - u * near);
}

#else

INLINE Wide log2_of(const Wide& u) { return log_of<Wide, WideWhole>(u) * 1.44269504f; }

INLINE Wide exp2_of(const Wide& y) { return exp_of<Wide, WideWhole>(y * 0.69314718f); }

INLINE Wide reciprocal_of(const Wide& u) { return 1.0f / u; }

#endif

INLINE Wide roots(const Wide& x) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    return (Wide)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    return (Wide)_mm256_sqrt_ps((__m256)x);
#else
    Wide y;
    for (int64_t r = 0; r < wide; ++r) y[r] = std::sqrt(x[r]);
    return y;
#endif
}

// u^power, and zero where u is not above zero.
INLINE Wide power_of(const Wide& u, float power) {
    const Wide zero = {}, one = zero + 1.0f;
    const auto in = u > 1e-30f;
    return choose(in, exp2_of(log2_of(choose(in, u, one)) * power), zero);
}

}  // namespace
