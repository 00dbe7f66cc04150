// What is asked before any work: which release this is, and how large numbers are.

#include <cstring>
#include <limits>

#include "common.h"

// The largest absolute value of n numbers, as bits without the sign: those of NaN and of the infinities are above all
// others, so that whole numbers tell, and no rule about comparisons with NaN is needed.
#define LARGEST_PART(NAME, BITS)                                              \
    VERSIONS static BITS NAME(const BITS* x, int64_t n) {                     \
        BITS top = 0;                                                         \
        const BITS all_but_sign = std::numeric_limits<BITS>::max();           \
        _Pragma("omp simd reduction(max : top)") for (int64_t i = 0; i < n; ++i) { \
            const BITS bits = x[i] & all_but_sign;                            \
            top = bits > top ? bits : top;                                    \
        }                                                                     \
        return top;                                                           \
    }

LARGEST_PART(largest_16, int16_t)
LARGEST_PART(largest_32, int32_t)
LARGEST_PART(largest_64, int64_t)

namespace {

// Rows of `width` numbers that lie `step` apart, three deep, shared between threads.
template <typename Bits>
Bits largest_in(Bits (*part)(const Bits*, int64_t), const Bits* x, const int64_t* count, const int64_t* step,
                int64_t width, int threads) {
    const int64_t rows = count[0] * count[1] * count[2];
    const int parts = threads_for(rows * width / 16, threads);
    const int64_t pieces = rows == 1 ? parts : rows;
    Bits top = 0;
#pragma omp parallel for num_threads(parts) reduction(max : top)
    for (int64_t piece = 0; piece < pieces; ++piece) {
        Bits found;
        if (rows == 1) {
            const int64_t a = width * piece / pieces, b = width * (piece + 1) / pieces;
            found = part(x + a, b - a);
        } else {
            const int64_t i = piece / (count[1] * count[2]), j = piece / count[2] % count[1], l = piece % count[2];
            found = part(x + i * step[0] + j * step[1] + l * step[2], width);
        }
        top = found > top ? found : top;
    }
    return top;
}

}  // namespace

// The bits of the largest absolute value in a tensor of `bytes` a number, as rows (count, step; in numbers) of `width`.
extern "C" int64_t regard_largest(const void* x, int bytes, const int64_t* count, const int64_t* step, int64_t width,
                                  int threads) {
    if (bytes == 2) return largest_in(largest_16, static_cast<const int16_t*>(x), count, step, width, threads);
    if (bytes == 4) return largest_in(largest_32, static_cast<const int32_t*>(x), count, step, width, threads);
    return largest_in(largest_64, static_cast<const int64_t*>(x), count, step, width, threads);
}

extern "C" int regard_version() { return 6; }
