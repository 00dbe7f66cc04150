// Sinkhorn's passes over a matrix, as in maps/sinkhorn/products.py: the rows are scaled and the columns of the result
// summed while a few rows are in the cache, so that an iteration reads the matrix once and not twice.

#include <vector>

#include "common.h"

namespace {

constexpr int64_t together = 4, block = 32;  // rows read at once, and rows summed in the matrix's precision

// sums = m v, u = a / sums (a where a sum is zero), columns += u m, for `together` rows of k entries.
template <typename T>
INLINE void scale_rows(const T* m, const T* v, const T* a, T* sums, T* u, T* columns, int64_t k) {
    const T *m0 = m, *m1 = m + k, *m2 = m + 2 * k, *m3 = m + 3 * k;
    T s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    SIMD(reduction(+ : s0, s1, s2, s3))
    for (int64_t j = 0; j < k; ++j) {
        s0 += m0[j] * v[j];
        s1 += m1[j] * v[j];
        s2 += m2[j] * v[j];
        s3 += m3[j] * v[j];
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3;
    for (int64_t i = 0; i < together; ++i) u[i] = a[i] / (sums[i] == 0 ? T(1) : sums[i]);
    const T u0 = u[0], u1 = u[1], u2 = u[2], u3 = u[3];
    SIMD()
    for (int64_t j = 0; j < k; ++j) columns[j] += (u0 * m0[j] + u1 * m1[j]) + (u2 * m2[j] + u3 * m3[j]);
}

template <typename T>
INLINE void scale_row(const T* m, const T* v, const T* a, T* sums, T* u, T* columns, int64_t k) {
    T sum = 0;
    SIMD(reduction(+ : sum))
    for (int64_t j = 0; j < k; ++j) sum += m[j] * v[j];
    *sums = sum;
    const T scale = *u = *a / (sum == 0 ? T(1) : sum);
    SIMD()
    for (int64_t j = 0; j < k; ++j) columns[j] += scale * m[j];
}

// Some rows of one matrix; `total` gets their column sums.
template <typename T>
INLINE void scale_part(const T* m, const T* v, const T* a, T* sums, T* u, double* total, T* columns, int64_t rows,
                       int64_t k) {
    std::fill(total, total + k, 0.0);
    for (int64_t first = 0; first < rows; first += block) {
        const int64_t last = std::min(rows, first + block);
        std::fill(columns, columns + k, T(0));
        int64_t i = first;
        for (; i + together <= last; i += together) scale_rows(m + i * k, v, a + i, sums + i, u + i, columns, k);
        for (; i < last; ++i) scale_row(m + i * k, v, a + i, sums + i, u + i, columns, k);
        SIMD()
        for (int64_t j = 0; j < k; ++j) total[j] += static_cast<double>(columns[j]);
    }
}

// In how many parts a matrix is worked on. It does not depend on the threads, and so neither does the result.
INLINE int64_t parts_of(int64_t rows, int64_t k) {
    return std::max<int64_t>(1, std::min<int64_t>({16, rows / block, rows * k >> 15}));
}

}  // namespace

#define SCALING(T, NAME)                                                                                              \
    static void scale_##NAME(const T* m, const T* v, const T* a, T* sums, T* u, double* total, T* columns,            \
                                      int64_t rows, int64_t k) {                                                      \
        scale_part(m, v, a, sums, u, total, columns, rows, k);                                                        \
    }                                                                                                                 \
    /* For `count` matrices m (rows, k): sums = m v (rows), u = a / sums (rows), columns = u m (k). */                \
    EXPORT int regard_scale_##NAME(const T* m, const T* v, const T* a, T* sums, T* u, T* columns, int64_t count,      \
                                       int64_t rows, int64_t k, int threads) {                                        \
        const int64_t parts = parts_of(rows, k), tasks = count * parts;                                               \
        std::vector<double> total(tasks * k);                                                                         \
        std::vector<T> kept(tasks * k);                                                                               \
        const int hands = threads_for(count * rows * k, threads);                                                     \
        PARALLEL(num_threads(hands)) for (int64_t task = 0; task < tasks; ++task) {                                   \
            const int64_t matrix = task / parts, part = task % parts;                                                 \
            const int64_t from = rows * part / parts, to = rows * (part + 1) / parts, at = matrix * rows + from;      \
            scale_##NAME(m + at * k, v + matrix * k, a + at, sums + at, u + at, total.data() + task * k,              \
                         kept.data() + task * k, to - from, k);                                                       \
        }                                                                                                             \
        for (int64_t i = 0; i < count * k; ++i) {                                                                     \
            double sum = 0.0;                                                                                         \
            for (int64_t part = 0; part < parts; ++part) sum += total[(i / k * parts + part) * k + i % k];            \
            columns[i] = static_cast<T>(sum);                                                                         \
        }                                                                                                             \
        return 0;                                                                                                     \
    }

SCALING(float, f32)
SCALING(double, f64)
