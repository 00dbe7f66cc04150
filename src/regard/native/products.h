// Products of small matrices that lie in the cache: tiles of the result stay in registers.
#pragma once

#include <cstring>
#include <limits>
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

// The register of a type of number, how many it holds, and how many a row of a tile has.
template <typename T>
struct RegisterOf {
    typedef Wide Type;
};
template <>
struct RegisterOf<double> {
    typedef WideDoubles Type;
};
template <typename T>
using Register = typename RegisterOf<T>::Type;
template <typename T>
constexpr int64_t numbers_in = 4 * wide / sizeof(T);
template <typename T>
constexpr int64_t panel_of = across * numbers_in<T>;

#if defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
// Not by memcpy: GCC 12 makes two moves of 16 bytes of it, and keeps the sums of a tile in memory.
typedef Wide AnyWide __attribute__((may_alias));
typedef WideDoubles AnyWideDoubles __attribute__((may_alias));

INLINE Wide load(const float* x) { return *reinterpret_cast<const AnyWide*>(x); }
INLINE WideDoubles load(const double* x) { return *reinterpret_cast<const AnyWideDoubles*>(x); }
INLINE void store(float* x, const Wide& y) { *reinterpret_cast<AnyWide*>(x) = y; }
INLINE void store(double* x, const WideDoubles& y) { *reinterpret_cast<AnyWideDoubles*>(x) = y; }
#else
INLINE Wide load(const float* x) {
    Wide y;
    std::memcpy(&y, x, sizeof(y));
    return y;
}

INLINE WideDoubles load(const double* x) {
    WideDoubles y;
    std::memcpy(&y, x, sizeof(y));
    return y;
}

INLINE void store(float* x, const Wide& y) { std::memcpy(x, &y, sizeof(y)); }
INLINE void store(double* x, const WideDoubles& y) { std::memcpy(x, &y, sizeof(y)); }
#endif

INLINE int64_t padded(int64_t n) { return (n + wide - 1) / wide * wide; }

// A matrix in memory: entry (i, j) at i * row + j * column.
template <typename T>
struct Matrix {
    const T* of;
    int64_t row, column;
};

// A tile of the product of a (m x depth) and b (depth x vectors; its rows lie `step` apart), added to out if `add`.
template <typename T, int m, int vectors>
static void tile(Matrix<T> a, const T* b, int64_t step, T* out, int64_t out_step, int64_t depth, bool add) {
    constexpr int64_t held = numbers_in<T>;
    Register<T> sum[m][vectors];
    UNROLL
    for (int i = 0; i < m; ++i)
        UNROLL
        for (int j = 0; j < vectors; ++j) sum[i][j] = Register<T>{};
    for (int64_t t = 0; t < depth; ++t) {
        Register<T> x[vectors];
        UNROLL
        for (int j = 0; j < vectors; ++j) x[j] = load(b + t * step + j * held);
        const T* y = a.of + t * a.column;
        UNROLL
        for (int i = 0; i < m; ++i)
            UNROLL
            for (int j = 0; j < vectors; ++j) sum[i][j] += x[j] * y[i * a.row];
    }
    UNROLL
    for (int i = 0; i < m; ++i)
        UNROLL
        for (int j = 0; j < vectors; ++j) {
            T* c = out + i * out_step + j * held;
            store(c, add ? load(c) + sum[i][j] : sum[i][j]);
        }
}

template <typename T>
using Tile = void (*)(Matrix<T>, const T*, int64_t, T*, int64_t, int64_t, bool);

template <typename T, int m>
static Tile<T> tile_of(int vectors) {
    if constexpr (across == 4) {
        if (vectors == 4) return tile<T, m, 4>;
        if (vectors == 3) return tile<T, m, 3>;
    }
    return vectors == 2 ? tile<T, m, 2> : tile<T, m, 1>;
}

template <typename T>
static Tile<T> tile_of(int m, int vectors) {
    switch (m) {
        case 1: return tile_of<T, 1>(vectors);
        case 2: return tile_of<T, 2>(vectors);
        case 3: return tile_of<T, 3>(vectors);
        case 4: return tile_of<T, 4>(vectors);
        case 5: return tile_of<T, 5>(vectors);
        default: return tile_of<T, tall>(vectors);
    }
}

template <typename T>
struct Itself {
    typedef T Type;
};

// The product of a (m x depth) and b (depth x columns, whole registers; rows `step` apart), added to out if `add`.
template <typename T>
static void product(Matrix<typename Itself<T>::Type> a, int64_t m, const T* b, int64_t step, int64_t columns,
                    int64_t depth, T* out, int64_t out_step, bool add) {
    for (int64_t j = 0; j < columns; j += panel_of<T>) {
        const int vectors = static_cast<int>(std::min<int64_t>(across, (columns - j) / numbers_in<T>));
        const Tile<T> full = tile_of<T>(tall, vectors);
        for (int64_t i = 0; i < m; i += tall) {
            const Matrix<T> rows = {a.of + i * a.row, a.row, a.column};
            const Tile<T> run = m - i >= tall ? full : tile_of<T>(static_cast<int>(m - i), vectors);
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
template <typename T>
static void pack(const T* x, int64_t step, int64_t n, int64_t width, typename Itself<T>::Type scale, T* packed) {
    for (int64_t first = 0; first < n; first += panel_of<T>) {
        const int64_t rows = std::min(panel_of<T>, n - first), room = padded(rows);
        T* out = packed + first * width;
        for (int64_t t = 0; t < width; ++t)
            for (int64_t r = rows; r < room; ++r) out[t * room + r] = 0;
        int64_t whole = 0;
        if constexpr (transposes && sizeof(T) == 4) {
            whole = width % wide == 0 ? rows / wide * wide : 0;
            for (int64_t r = 0; r < whole; r += wide)
                for (int64_t t = 0; t < width; t += wide) {
                    Wide square[wide];
                    transposed(x + (first + r) * step + t, step, square);
                    for (int64_t i = 0; i < wide; ++i) store(out + (t + i) * room + r, square[i] * scale);
                }
        }
        for (int64_t r = whole; r < rows; ++r)
            for (int64_t t = 0; t < width; ++t) out[t * room + r] = scale * x[(first + r) * step + t];
    }
}

// The inner products of m rows of a, `step` apart, with the first `some` of n packed rows of the same width.
template <typename T>
static void inner_products(const T* a, int64_t step, int64_t m, int64_t width, const T* packed, int64_t n,
                           int64_t some, T* out, int64_t out_step) {
    constexpr int64_t panel = panel_of<T>;
    for (int64_t first = 0; first < some; first += panel) {
        const int64_t room = padded(std::min(panel, n - first)), columns = padded(std::min(panel, some - first));
        product<T>({a, step, 1}, m, packed + first * width, room, columns, width, out + first, out_step, false);
    }
}

// sum_j w[j] x[place[j]] of some columns of x, whose rows are `step` apart.
template <int vectors, typename T>
INLINE void gather_columns(const T* x, int64_t step, const int32_t* place, const T* w, int64_t count, T* out) {
    constexpr int64_t held = numbers_in<T>;
    Register<T> even[vectors], odd[vectors];
    for (int j = 0; j < vectors; ++j) even[j] = odd[j] = Register<T>{};
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
        const T *one = x + place[i] * step, *other = x + place[i + 1] * step;
        for (int j = 0; j < vectors; ++j) {
            even[j] += load(one + j * held) * w[i];
            odd[j] += load(other + j * held) * w[i + 1];
        }
    }
    if (i < count)
        for (int j = 0; j < vectors; ++j) even[j] += load(x + place[i] * step + j * held) * w[i];
    for (int j = 0; j < vectors; ++j) store(out + j * held, even[j] + odd[j]);
}

// out = sum_j w[j] x[place[j]], rows of d numbers, `step` apart.
template <typename T>
static void gather(const T* x, int64_t step, int64_t d, const int32_t* place, const T* w, int64_t count, T* out) {
    constexpr int64_t held = numbers_in<T>;
    int64_t c = 0;
    for (; c + 4 * held <= d; c += 4 * held) gather_columns<4>(x + c, step, place, w, count, out + c);
    for (; c + 2 * held <= d; c += 2 * held) gather_columns<2>(x + c, step, place, w, count, out + c);
    for (; c + held <= d; c += held) gather_columns<1>(x + c, step, place, w, count, out + c);
    for (; c < d; ++c) {
        T sum = 0;
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

INLINE double total(const WideDoubles& x) {
    double sum[2] = {};
    for (int64_t i = 0; i < wide / 2; ++i) sum[i % 2] += x[i];
    return sum[0] + sum[1];
}

// out[j] = <x[place[j]], y>, rows of d numbers, `step` apart.
template <typename T>
static void products_at(const T* x, int64_t step, int64_t d, const int32_t* place, int64_t count, const T* y, T* out) {
    constexpr int64_t held = numbers_in<T>;
    for (int64_t j = 0; j < count; ++j) {
        const T* row = x + place[j] * step;
        Register<T> sum = {}, other = {};
        int64_t t = 0;
        for (; t + 2 * held <= d; t += 2 * held) {
            sum += load(row + t) * load(y + t);
            other += load(row + t + held) * load(y + t + held);
        }
        for (; t + held <= d; t += held) sum += load(row + t) * load(y + t);
        T rest = 0;
        for (; t < d; ++t) rest += row[t] * y[t];
        out[j] = total(sum + other) + rest;
    }
}

// out[place[j]] += w[j] x, rows of d numbers, `step` apart: some columns of them.
template <int vectors, typename T>
INLINE void scatter_columns(const T* x, int64_t step, const int32_t* place, const T* w, int64_t count, T* out) {
    constexpr int64_t held = numbers_in<T>;
    Register<T> row[vectors];
    for (int j = 0; j < vectors; ++j) row[j] = load(x + j * held);
    for (int64_t i = 0; i < count; ++i) {
        T* at = out + place[i] * step;
        for (int j = 0; j < vectors; ++j) store(at + j * held, load(at + j * held) + row[j] * w[i]);
    }
}

template <typename T>
static void scatter(const T* x, int64_t d, const int32_t* place, const T* w, int64_t count, T* out, int64_t step) {
    constexpr int64_t held = numbers_in<T>;
    int64_t c = 0;
    for (; c + 4 * held <= d; c += 4 * held) scatter_columns<4>(x + c, step, place, w, count, out + c);
    for (; c + 2 * held <= d; c += 2 * held) scatter_columns<2>(x + c, step, place, w, count, out + c);
    for (; c + held <= d; c += held) scatter_columns<1>(x + c, step, place, w, count, out + c);
    for (; c < d; ++c)
        for (int64_t i = 0; i < count; ++i) out[place[i] * step + c] += w[i] * x[c];
}

// The largest absolute value of n rows of `width` numbers, `step` apart, infinite where one is NaN: by bits, as in
// checks.cpp.
template <typename T>
static T largest_absolute(const T* x, int64_t step, int64_t n, int64_t width) {
    typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> Bits;
    constexpr Bits sign = std::numeric_limits<Bits>::max();
    const T infinity = std::numeric_limits<T>::infinity();
    Bits top = 0, most;
    std::memcpy(&most, &infinity, sizeof(most));
    if (step == width) width *= n, n = 1;
    for (int64_t r = 0; r < n; ++r) {
        const T* row = x + r * step;
        SIMD(reduction(max : top))
        for (int64_t i = 0; i < width; ++i) {
            Bits bits;
            std::memcpy(&bits, row + i, sizeof(bits));
            bits &= sign;
            top = bits > top ? bits : top;
        }
    }
    top = std::min(top, most);
    T largest;
    std::memcpy(&largest, &top, sizeof(largest));
    return largest;
}

}  // namespace
