// One grid of TVmax: its scores on the scale of their range, its edges, its duals. docs/math.md, 2.5, has the
// equations.
//
// A grid has n cells in rows of w, and an edge is stored at its left or upper cell: to the right, then downwards. One
// that does not exist has the capacity zero, so its dual stays zero, and the grid can be shifted as one row with a
// margin of zeros at its ends.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "common.h"

namespace {

constexpr int64_t side = 8;  // rows are filled up to a multiple of it, so that vectors have no rest

struct Grid {
    int64_t n, w, filled;
    double cap, half, middle;
    bool bad, whole;  // scores or gamma that are not finite; every cell takes part in the edges at hand
    std::vector<double> memory;
    std::vector<float> flags;
    std::vector<int32_t> numbers;
    std::vector<uint8_t> part;  // cells that take part
    double *s, *q, *value, *force, *sum, *size, *pulls, *u[2], *y[2], *full[2], *exists[2], *upper[2], *sign[2];
    float* free[2];  // 1 at an edge inside its bounds
    int32_t *parent, *degree, *link, *cells, *edges;

    void fit(int64_t cells_of_one, int64_t width) {
        if (n == cells_of_one && w == width) return;
        n = cells_of_one, w = width, filled = (n + side - 1) / side * side, whole = false;
        const int64_t room = filled + 2 * (w + side), names = 19;
        memory.assign(names * room, 0.0);
        flags.assign(2 * filled, 0.0f);
        numbers.assign(6 * n + side, 0);
        part.assign(n, 0);
        double** all[names] = {&s,       &q,       &value,     &force,     &sum,      &size,     &pulls,
                               &u[0],    &u[1],    &y[0],      &y[1],      &full[0],  &full[1],  &exists[0],
                               &exists[1], &upper[0], &upper[1], &sign[0], &sign[1]};
        for (int64_t i = 0; i < names; ++i) *all[i] = memory.data() + i * room + w + side;
        free[0] = flags.data(), free[1] = free[0] + filled;
        parent = numbers.data(), degree = parent + n, link = degree + n, cells = link + n, edges = cells + 2 * n;
    }
};

// Scores in [-1, 1], gamma on the same scale, and the edges; duals are left alone. Without a mask it is null.
template <typename T>
INLINE void take(Grid& g, const T* scores, double gamma, const uint8_t* mask) {
    const int64_t n = g.n, w = g.w;
    const double infinity = std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::max();
    double high = -infinity, low = infinity, rest = 0.0;
    SIMD(reduction(max : high) reduction(min : low) reduction(+ : rest))
    for (int64_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(scores[i]);
        high = x > high ? x : high, low = x < low ? x : low;
        rest += x - x;  // NaN unless x is finite
    }
    const bool every = mask == nullptr && rest == 0.0;
    g.bad = !(gamma >= 0.0) || gamma == infinity;
    if (!every) {
        high = -infinity, low = infinity;
        for (int64_t i = 0; i < n; ++i) {
            const double x = static_cast<double>(scores[i]);
            g.part[i] = (mask == nullptr || mask[i]) && x != -infinity;
            if (!g.part[i]) continue;
            g.bad |= !(std::abs(x) <= most);
            high = x > high ? x : high, low = x < low ? x : low;
        }
    } else if (!g.whole) {
        std::fill(g.part.begin(), g.part.end(), uint8_t(1));
    }
    g.half = !g.bad && high > low ? high / 2 - low / 2 : 1.0;
    g.middle = g.bad || !(high >= low) ? 0.0 : high / 2 + low / 2;
    // No edge ever has to carry more than the whole excess of a grid, below 2 n: a larger gamma changes nothing.
    g.cap = g.bad ? 0.0 : std::min(gamma / g.half, 2.0 * static_cast<double>(n));
    if (!every || !g.whole) {
        for (int64_t i = 0, column = 0; i < n; ++i) {
            column = column == w ? 1 : column + 1;
            g.exists[0][i] = column < w && g.part[i] && g.part[i + 1] ? 1.0 : 0.0;
            g.exists[1][i] = i + w < n && g.part[i] && g.part[i + w] ? 1.0 : 0.0;
        }
        g.whole = every;
    }
    const double middle = g.middle, half = g.half, inverse = 1.0 / half;
    const bool normal = std::abs(inverse) <= most;  // else half is so small that it has no inverse
    if (every && normal) {
        SIMD()
        for (int64_t i = 0; i < n; ++i) g.s[i] = (static_cast<double>(scores[i]) - middle) * inverse;
    } else {
        for (int64_t i = 0; i < n; ++i)
            g.s[i] = g.part[i] && !g.bad ? (static_cast<double>(scores[i]) - middle) / half : 0.0;
    }
    for (int d = 0; d < 2; ++d) {
        const double *exists = g.exists[d], cap = g.cap;
        double* upper = g.upper[d];
        SIMD()
        for (int64_t i = 0; i < g.filled; ++i) upper[i] = exists[i] * cap;
    }
}

// q = s - D^T u.
INLINE void primal(const Grid& g, const double* s, double* const* u, double* q) {
    const double *right = u[0], *left = u[0] - 1, *down = u[1], *up = u[1] - g.w;
    SIMD()
    for (int64_t i = 0; i < g.filled; ++i) q[i] = s[i] + right[i] + down[i] - left[i] - up[i];
}

}  // namespace
