// Products of small matrices that lie in the cache: tiles of the result stay in registers.
#pragma once

#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "lanes.h"

namespace {

// The tile that fits in all registers: `tall` rows of `across` of them.
#if defined(__AVX512F__)
constexpr int across = 4;
#else
constexpr int across = 2;
#endif
constexpr int tall = 6;
constexpr int64_t panel = across * wide;

INLINE Wide load(const float* x) {
    Wide y;
    std::memcpy(&y, x, sizeof(y));
    return y;
}

INLINE void store(float* x, const Wide& y) { std::memcpy(x, &y, sizeof(y)); }

INLINE int64_t padded(int64_t n) { return (n + wide - 1) / wide * wide; }

// A matrix in memory: entry (i, j) at i * row + j * column.
struct Matrix {
    const float* of;
    int64_t row, column;
};

// A tile of the product of a (m x depth) and b (depth x vectors; its rows lie `step` apart), added to out if `add`.
template <int m, int vectors>
static void tile(Matrix a, const float* b, int64_t step, float* out, int64_t out_step, int64_t depth, bool add) {
    Wide sum[m][vectors];
    UNROLL
    for (int i = 0; i < m; ++i)
        UNROLL
        for (int j = 0; j < vectors; ++j) sum[i][j] = Wide{};
    for (int64_t t = 0; t < depth; ++t) {
        Wide x[vectors];
        UNROLL
        for (int j = 0; j < vectors; ++j) x[j] = load(b + t * step + j * wide);
        const float* y = a.of + t * a.column;
        UNROLL
        for (int i = 0; i < m; ++i)
            UNROLL
            for (int j = 0; j < vectors; ++j) sum[i][j] += x[j] * y[i * a.row];
    }
    UNROLL
    for (int i = 0; i < m; ++i)
        UNROLL
        for (int j = 0; j < vectors; ++j) {
            float* c = out + i * out_step + j * wide;
            store(c, add ? load(c) + sum[i][j] : sum[i][j]);
        }
}

typedef void (*Tile)(Matrix, const float*, int64_t, float*, int64_t, int64_t, bool);

template <int m>
static Tile tile_of(int vectors) {
    if constexpr (across == 4) {
        if (vectors == 4) return tile<m, 4>;
        if (vectors == 3) return tile<m, 3>;
    }
    return vectors == 2 ? tile<m, 2> : tile<m, 1>;
}

static Tile tile_of(int m, int vectors) {
    switch (m) {
        case 1: return tile_of<1>(vectors);
        case 2: return tile_of<2>(vectors);
        case 3: return tile_of<3>(vectors);
        case 4: return tile_of<4>(vectors);
        case 5: return tile_of<5>(vectors);
        default: return tile_of<tall>(vectors);
    }
}

// The product of a (m x depth) and b (depth x columns, a multiple of `wide`; rows `step` apart), added to out if `add`.
static void product(Matrix a, int64_t m, const float* b, int64_t step, int64_t columns, int64_t depth, float* out,
                    int64_t out_step, bool add) {
    for (int64_t j = 0; j < columns; j += panel) {
        const int vectors = static_cast<int>(std::min<int64_t>(across, (columns - j) / wide));
        const Tile full = tile_of(tall, vectors);
        for (int64_t i = 0; i < m; i += tall) {
            const Matrix rows = {a.of + i * a.row, a.row, a.column};
            const Tile run = m - i >= tall ? full : tile_of(static_cast<int>(m - i), vectors);
            run(rows, b + j, step, out + i * out_step + j, out_step, depth, add);
        }
    }
}

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
constexpr bool transposes = true;  // faster than number by number

// A square of numbers in registers, its rows `step` apart, transposed.
INLINE void transposed(const float* x, int64_t step, Wide* out) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(x + i * step);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            const __m512d one = _mm512_castps_pd(b[i + j]), other = _mm512_castps_pd(b[i + j + 2]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, other));
            a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, other));
        }
    for (int j = 0; j < 4; ++j) {  // quarters of registers
        const __m512 low = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), high = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
        const __m512 more = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88);
        const __m512 most = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
        out[j] = (Wide)_mm512_shuffle_f32x4(low, more, 0x88);
        out[j + 4] = (Wide)_mm512_shuffle_f32x4(high, most, 0x88);
        out[j + 8] = (Wide)_mm512_shuffle_f32x4(low, more, 0xdd);
        out[j + 12] = (Wide)_mm512_shuffle_f32x4(high, most, 0xdd);
    }
}
#else
constexpr bool transposes = false;

INLINE void transposed(const float* x, int64_t step, Wide* out) {
    for (int64_t i = 0; i < wide; ++i)
        for (int64_t j = 0; j < wide; ++j) out[i][j] = x[j * step + i];
}
#endif

// n rows of `width` numbers, `step` apart, times `scale`, as columns of panels: number t of all rows of a panel lies
// together, and the last panel is filled with zeros up to a whole register. It takes padded(n) * width numbers.
static void pack(const float* x, int64_t step, int64_t n, int64_t width, float scale, float* packed) {
    for (int64_t first = 0; first < n; first += panel) {
        const int64_t rows = std::min(panel, n - first), room = padded(rows);
        float* out = packed + first * width;
        for (int64_t t = 0; t < width; ++t)
            for (int64_t r = rows; r < room; ++r) out[t * room + r] = 0.0f;
        const int64_t whole = transposes && width % wide == 0 ? rows / wide * wide : 0;
        for (int64_t r = 0; r < whole; r += wide)
            for (int64_t t = 0; t < width; t += wide) {
                Wide square[wide];
                transposed(x + (first + r) * step + t, step, square);
                for (int64_t i = 0; i < wide; ++i) store(out + (t + i) * room + r, square[i] * scale);
            }
        for (int64_t r = whole; r < rows; ++r)
            for (int64_t t = 0; t < width; ++t) out[t * room + r] = scale * x[(first + r) * step + t];
    }
}

// The inner products of m rows of a, `step` apart, with the first `some` of n packed rows of the same width.
static void inner_products(const float* a, int64_t step, int64_t m, int64_t width, const float* packed, int64_t n,
                           int64_t some, float* out, int64_t out_step) {
    for (int64_t first = 0; first < some; first += panel) {
        const int64_t room = padded(std::min(panel, n - first)), columns = padded(std::min(panel, some - first));
        product({a, step, 1}, m, packed + first * width, room, columns, width, out + first, out_step, false);
    }
}

// sum_j w[j] x[place[j]] of some columns of x, whose rows are `step` apart.
template <int vectors>
INLINE void gather_columns(const float* x, int64_t step, const int32_t* place, const float* w, int64_t count, float* out) {
    Wide even[vectors], odd[vectors];
    for (int j = 0; j < vectors; ++j) even[j] = odd[j] = Wide{};
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
        const float *one = x + place[i] * step, *other = x + place[i + 1] * step;
        for (int j = 0; j < vectors; ++j) {
            even[j] += load(one + j * wide) * w[i];
            odd[j] += load(other + j * wide) * w[i + 1];
        }
    }
    if (i < count)
        for (int j = 0; j < vectors; ++j) even[j] += load(x + place[i] * step + j * wide) * w[i];
    for (int j = 0; j < vectors; ++j) store(out + j * wide, even[j] + odd[j]);
}

// out = sum_j w[j] x[place[j]], rows of d numbers, `step` apart.
static void gather(const float* x, int64_t step, int64_t d, const int32_t* place, const float* w, int64_t count, float* out) {
    int64_t c = 0;
    for (; c + 4 * wide <= d; c += 4 * wide) gather_columns<4>(x + c, step, place, w, count, out + c);
    for (; c + 2 * wide <= d; c += 2 * wide) gather_columns<2>(x + c, step, place, w, count, out + c);
    for (; c + wide <= d; c += wide) gather_columns<1>(x + c, step, place, w, count, out + c);
    for (; c < d; ++c) {
        float sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += w[i] * x[place[i] * step + c];
        out[c] = sum;
    }
}

INLINE float total(const Wide& x) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum[4] = {};
    for (int64_t i = 0; i < wide; ++i) sum[i % 4] += x[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
#endif
}

// out[j] = <x[place[j]], y>, rows of d numbers, `step` apart.
static void products_at(const float* x, int64_t step, int64_t d, const int32_t* place, int64_t count, const float* y,
                        float* out) {
    for (int64_t j = 0; j < count; ++j) {
        const float* row = x + place[j] * step;
        Wide sum = {}, other = {};
        int64_t t = 0;
        for (; t + 2 * wide <= d; t += 2 * wide) {
            sum += load(row + t) * load(y + t);
            other += load(row + t + wide) * load(y + t + wide);
        }
        for (; t + wide <= d; t += wide) sum += load(row + t) * load(y + t);
        float rest = 0;
        for (; t < d; ++t) rest += row[t] * y[t];
        out[j] = total(sum + other) + rest;
    }
}

// out[place[j]] += w[j] x, rows of d numbers, `step` apart: some columns of them.
template <int vectors>
INLINE void scatter_columns(const float* x, int64_t step, const int32_t* place, const float* w, int64_t count, float* out) {
    Wide row[vectors];
    for (int j = 0; j < vectors; ++j) row[j] = load(x + j * wide);
    for (int64_t i = 0; i < count; ++i) {
        float* at = out + place[i] * step;
        for (int j = 0; j < vectors; ++j) store(at + j * wide, load(at + j * wide) + row[j] * w[i]);
    }
}

static void scatter(const float* x, int64_t d, const int32_t* place, const float* w, int64_t count, float* out,
                    int64_t step) {
    int64_t c = 0;
    for (; c + 4 * wide <= d; c += 4 * wide) scatter_columns<4>(x + c, step, place, w, count, out + c);
    for (; c + 2 * wide <= d; c += 2 * wide) scatter_columns<2>(x + c, step, place, w, count, out + c);
    for (; c + wide <= d; c += wide) scatter_columns<1>(x + c, step, place, w, count, out + c);
    for (; c < d; ++c)
        for (int64_t i = 0; i < count; ++i) out[place[i] * step + c] += w[i] * x[c];
}

// The largest absolute value of n rows of `width` numbers, `step` apart, infinite where one is NaN: by bits, as in
// checks.cpp.
static float largest_absolute(const float* x, int64_t step, int64_t n, int64_t width) {
    int32_t top = 0;
    if (step == width) width *= n, n = 1;
    for (int64_t r = 0; r < n; ++r) {
        const float* row = x + r * step;
        SIMD(reduction(max : top))
        for (int64_t i = 0; i < width; ++i) {
            int32_t bits;
            std::memcpy(&bits, row + i, sizeof(bits));
            bits &= 0x7fffffff;
            top = bits > top ? bits : top;
        }
    }
    top = std::min(top, int32_t(0x7f800000));
    float largest;
    std::memcpy(&largest, &top, sizeof(largest));
    return largest;
}

}  // namespace
