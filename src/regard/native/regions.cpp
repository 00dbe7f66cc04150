// The regions that total variation fuses on a grid, as in maps/tvmax/solver.py: the same iteration on the dual, the
// same certificate, one grid after another in the cache. docs/math.md, 2.5, has the equations.
//
// A grid has n cells in rows of w, and an edge is stored at its left or upper cell. One that does not exist has the
// capacity zero, so its dual stays zero, and the grid can be shifted as one row with a margin of zeros at its ends.

#include <cmath>
#include <limits>
#include <vector>

#include "common.h"

namespace {

constexpr int64_t side = 8;  // rows are filled up to a multiple of it, so that vectors have no rest

struct Rules {
    int64_t most, every;
    double step, tolerance;
};

struct Grid {
    int64_t n, w, filled;
    double cap, half;
    bool bad;
    std::vector<double> memory;
    std::vector<int32_t> parent;
    std::vector<uint8_t> edge;  // 1 to the right, 2 downwards
    double *s, *q, *value, *force, *size, *u[2], *y[2], *upper[2], *sign[2];

    void fit(int64_t cells, int64_t width) {
        if (n == cells && w == width) return;
        n = cells, w = width, filled = (n + side - 1) / side * side;
        const int64_t room = filled + 2 * (w + side), names = 13;
        memory.assign(names * room, 0.0);
        parent.assign(n, 0);
        edge.assign(n, 0);
        double** all[names] = {&s,    &q,    &value,    &force,    &size,    &u[0],   &u[1],
                               &y[0], &y[1], &upper[0], &upper[1], &sign[0], &sign[1]};
        for (int64_t i = 0; i < names; ++i) *all[i] = memory.data() + i * room + w + side;
    }
};

// Scores in [-1, 1], gamma on the same scale, and the edges.
template <typename T>
INLINE void take(Grid& g, const T* scores, double gamma, const uint8_t* mask) {
    const int64_t n = g.n, w = g.w;
    const double infinity = std::numeric_limits<double>::infinity();
    double high = -infinity, low = infinity;
    g.bad = !(gamma >= 0.0) || gamma == infinity;
    for (int64_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(scores[i]);
        if (!mask[i]) continue;
        g.bad |= !std::isfinite(x);
        high = x > high ? x : high, low = x < low ? x : low;
    }
    g.half = !g.bad && high > low ? high / 2 - low / 2 : 1.0;
    g.cap = g.bad ? 0.0 : std::min(gamma / g.half, 2.0 * static_cast<double>(n));
    const double middle = high / 2 + low / 2;
    for (int64_t i = 0, column = 0; i < n; ++i) {
        column = column == w ? 1 : column + 1;
        g.s[i] = mask[i] && !g.bad ? (static_cast<double>(scores[i]) - middle) / g.half : 0.0;
        const bool right = column < w && mask[i] && mask[i + 1], down = i + w < n && mask[i] && mask[i + w];
        g.edge[i] = static_cast<uint8_t>(right + 2 * down);
        g.upper[0][i] = right ? g.cap : 0.0, g.upper[1][i] = down ? g.cap : 0.0;
        for (int d = 0; d < 2; ++d) g.u[d][i] = g.y[d][i] = 0.0;
    }
}

// q = s - D^T u.
INLINE void primal(const Grid& g, const double* s, double* const* u, double* q) {
    const double *right = u[0], *left = u[0] - 1, *down = u[1], *up = u[1] - g.w;
    SIMD()
    for (int64_t i = 0; i < g.filled; ++i) q[i] = s[i] + right[i] + down[i] - left[i] - up[i];
}

// A projected step from y along one direction of edges: u, the leap of y ahead of it, and how far it went uphill.
INLINE double advance(const double* q, const double* across, const double* upper, double* u, double* y, int64_t n,
                      double step) {
    double climb = 0.0;
    SIMD(reduction(+ : climb))
    for (int64_t i = 0; i < n; ++i) {
        const double most = upper[i], from = y[i];
        double next = from + step * (across[i] - q[i]);
        next = next > most ? most : next;
        next = next < -most ? -most : next;
        const double move = next - u[i];
        climb += (from - next) * move;
        u[i] = next;
        y[i] = next + move;
    }
    return climb;
}

INLINE void descend(Grid& g, const Rules& rules) {
    for (int64_t t = 0; t < rules.every; ++t) {
        primal(g, g.s, g.y, g.q);
        double climb = advance(g.q, g.q + 1, g.upper[0], g.u[0], g.y[0], g.filled, rules.step);
        climb += advance(g.q, g.q + g.w, g.upper[1], g.u[1], g.y[1], g.filled, rules.step);
        if (climb > 0.0)
            for (int d = 0; d < 2; ++d) std::copy(g.u[d], g.u[d] + g.n, g.y[d]);
    }
}

// How far u is from a fixed point: a grid with much of it cannot pass the certificate. Leaves q = s - D^T u.
INLINE double residual(Grid& g) {
    primal(g, g.s, g.u, g.q);
    double most = 0.0;
    for (int d = 0; d < 2; ++d) {
        const double *q = g.q, *across = g.q + (d == 0 ? 1 : g.w), *upper = g.upper[d], *u = g.u[d];
        SIMD(reduction(max : most))
        for (int64_t i = 0; i < g.filled; ++i) {
            double next = u[i] + (across[i] - q[i]);
            next = next > upper[i] ? upper[i] : next;
            next = next < -upper[i] ? -upper[i] : next;
            const double off = std::abs(next - u[i]);
            most = off > most ? off : most;
        }
    }
    return most;
}

INLINE int32_t first_of(int32_t* parent, int32_t cell) {
    while (parent[cell] != cell) cell = parent[cell] = parent[parent[cell]];
    return cell;
}

INLINE double sign_of(double x) { return static_cast<double>((x > 0.0) - (x < 0.0)); }

// Regions and pull read off the duals, and the duality gap (2.5.5) of the values they give. Cells are fused along edges
// whose dual is strictly inside its bounds. It leaves the first cell of every cell's region in `parent`, the pull on it
// in `force`.
INLINE double polish(Grid& g) {
    const int64_t n = g.n, shift[2] = {1, g.w};
    int32_t* parent = g.parent.data();
    for (int64_t i = 0; i < n; ++i) parent[i] = static_cast<int32_t>(i);
    for (int d = 0; d < 2; ++d)
        for (int64_t i = 0; i < n; ++i) {
            const bool exists = g.edge[i] >> d & 1, free = std::abs(g.u[d][i]) < g.upper[d][i];
            const int64_t other = i + shift[d];
            if (free) {
                const int32_t a = first_of(parent, static_cast<int32_t>(i));
                const int32_t b = first_of(parent, static_cast<int32_t>(other));
                parent[std::max(a, b)] = std::min(a, b);
            }
            // Where gamma = 0 the dual is zero and has no sign; there the direction is that of the scores.
            const double along = g.upper[d][i] > 0.0 ? g.u[d][i] : g.q[other] - g.q[i];
            g.sign[d][i] = exists && !free ? sign_of(along) : 0.0;
        }
    for (int64_t i = 0; i < n; ++i) {
        parent[i] = first_of(parent, static_cast<int32_t>(i));
        g.value[i] = g.force[i] = g.size[i] = 0.0;
        const int32_t root = parent[i];  // never after i, so its sums have begun
        g.value[root] += g.s[i];
        g.force[root] += g.sign[0][i] + g.sign[1][i] - g.sign[0][i - 1] - g.sign[1][i - g.w];
        g.size[root] += 1.0;
    }
    double gap = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t root = parent[i];
        if (root == i) {
            g.force[i] /= g.size[i];
            g.value[i] = g.value[i] / g.size[i] + g.cap * g.force[i];
        }
        g.force[i] = g.force[root], g.value[i] = g.value[root];
        gap += (g.value[i] - g.q[i]) * (g.value[i] - g.q[i]) / 2;
    }
    // Regions of equal value may differ in the last digits, and then in the direction that counts.
    const double same = static_cast<double>(n) * std::numeric_limits<double>::epsilon();
    for (int d = 0; d < 2; ++d)
        for (int64_t i = 0; i < n; ++i) {
            if (!(g.edge[i] >> d & 1)) continue;
            const double jump = g.value[i + shift[d]] - g.value[i];
            if (std::abs(jump) > same) gap += (g.upper[d][i] - g.u[d][i] * sign_of(jump)) * std::abs(jump);
        }
    return gap;
}

// Solves one grid. Returns zero, or a bound on the error of a grid that could not be certified.
INLINE double solve(Grid& g, const Rules& rules) {
    const double finest = std::max(1e-10, 64 * std::numeric_limits<double>::epsilon());
    const double tolerance = std::max(rules.tolerance / std::max(g.half, 1.0), finest);
    for (int64_t iteration = 0;; iteration += rules.every) {
        const bool last = iteration + rules.every > rules.most;
        if (residual(g) <= 2.1 * tolerance || last) {
            const double error = std::sqrt(std::max(0.0, 2 * polish(g)));
            if (error <= tolerance) return 0.0;
            if (last) return error * g.half;
        }
        descend(g, rules);
    }
}

}  // namespace

#define REGIONS(T, NAME)                                                                                              \
    static int regions_##NAME(const T* s, const T* gamma, const uint8_t* mask, int64_t* label, T* pull,               \
                                       double* error, int64_t rows, int64_t n, int64_t w, const Rules& rules) {       \
        static thread_local Grid grid = {};                                                                           \
        int uncertain = 0;                                                                                            \
        grid.fit(n, w);                                                                                               \
        for (int64_t r = 0; r < rows; ++r) {                                                                          \
            take(grid, s + r * n, static_cast<double>(gamma[r]), mask + r * n);                                       \
            error[r] = solve(grid, rules);                                                                            \
            uncertain += error[r] > 0.0;                                                                              \
            for (int64_t i = 0; i < n; ++i) {                                                                         \
                label[r * n + i] = grid.parent[i];                                                                    \
                pull[r * n + i] = grid.bad ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(grid.force[i]);     \
            }                                                                                                         \
        }                                                                                                             \
        return uncertain;                                                                                             \
    }                                                                                                                 \
    /* Regions and pull of `rows` grids; `error` is zero, or the bound of one that is not certified: their number */  \
    /* is returned. Grids take very different times, so that threads fetch a few at a time. */                        \
    EXPORT int regard_regions_##NAME(const T* s, const T* gamma, const uint8_t* mask, int64_t* label, T* pull,        \
                                         double* error, int64_t rows, int64_t n, int64_t w, int64_t most,             \
                                         int64_t every, double step, double tolerance, int threads) {                 \
        const Rules rules = {most, every, step, tolerance};                                                           \
        const int64_t block = 4, blocks = (rows + block - 1) / block;                                                 \
        const int parts = threads_for(rows * n * 100, threads);                                                       \
        int uncertain = 0;                                                                                            \
        PARALLEL(num_threads(parts) schedule(dynamic) reduction(+ : uncertain)) for (                                 \
            int64_t b = 0; b < blocks; ++b) {                                                                         \
            const int64_t a = b * block, here = std::min(block, rows - a);                                            \
            uncertain += regions_##NAME(s + a * n, gamma + a, mask + a * n, label + a * n, pull + a * n, error + a,   \
                                        here, n, w, rules);                                                           \
        }                                                                                                             \
        return uncertain;                                                                                             \
    }

REGIONS(float, f32)
REGIONS(double, f64)
