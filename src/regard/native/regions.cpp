// The regions that total variation fuses on a grid: the problem and the certificate of maps/tvmax/solver.py.
//
// Grids are relaxed in lanes, and most are certified then. A grid that is not goes on alone, in double precision, with
// the accelerated steps of the plain solver. docs/math.md, 2.5, has the equations.

#include "region_lanes.h"

namespace {

struct Rules {
    int64_t most, every;
    double step, tolerance;
};

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

// How far u is from a fixed point: a grid with much of it cannot pass the certificate unless its duals are completed.
INLINE double residual(Grid& g) {
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

INLINE double tolerance_of(const Grid& g, const Rules& rules) {
    const double finest = std::max(1e-10, 64 * std::numeric_limits<double>::epsilon());
    return std::max(rules.tolerance / std::max(g.half, 1.0), finest);
}

// Solves one grid from the duals u after some `iterations`. Returns zero, or a bound on the error of a grid that could
// not be certified. The certificate takes as long as some steps: it is tried where the steps stand still, and from time
// to time.
INLINE double solve(Grid& g, const Rules& rules, int64_t iterations) {
    const double tolerance = tolerance_of(g, rules);
    for (int d = 0; d < 2; ++d) std::copy(g.u[d], g.u[d] + g.n, g.y[d]);
    for (int64_t next = iterations + iterations / 2;; iterations += rules.every) {
        const bool last = iterations + rules.every > rules.most;
        primal(g, g.s, g.u, g.q);
        if (iterations >= next || last || residual(g) <= 2.1 * tolerance) {
            const double error = certificate(g);
            if (error <= tolerance) return 0.0;
            if (last) return error * g.half;
            next = iterations + iterations / 2;
        }
        descend(g, rules);
    }
}

template <typename T>
struct Call {
    const T *s, *gamma;
    const uint8_t* mask;  // null where every cell takes part
    int32_t* label;
    T *pull, *smooth, *middle;
    double* error;
    int64_t n, w;
    Rules rules;
};

template <typename T>
INLINE void take(Grid& g, const Call<T>& c, int64_t row) {
    take(g, c.s + row * c.n, static_cast<double>(c.gamma[row]), c.mask == nullptr ? nullptr : c.mask + row * c.n);
}

// Writes the results of a grid. Returns whether there is something to say about it.
template <typename T>
INLINE int give(const Grid& g, const Call<T>& c, int64_t row, double error) {
    const int64_t n = c.n;
    const T nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
    int32_t* label = c.label + row * n;
    T *pull = c.pull + row * n, *smooth = c.smooth + row * n;
    std::copy(g.parent, g.parent + n, label);
    for (int64_t i = 0; i < n; ++i) pull[i] = static_cast<T>(g.force[i]);
    if (g.whole)
        for (int64_t i = 0; i < n; ++i) smooth[i] = static_cast<T>(g.value[i] * g.half);
    else
        for (int64_t i = 0; i < n; ++i) smooth[i] = g.part[i] ? static_cast<T>(g.value[i] * g.half) : -infinity;
    if (g.bad) std::fill(pull, pull + n, nan), std::fill(smooth, smooth + n, nan);
    c.middle[row] = static_cast<T>(g.middle);
    c.error[row] = g.bad ? std::numeric_limits<double>::quiet_NaN() : error;
    return g.bad || error > 0.0;
}

constexpr int64_t sweeps_at_first = 10, most_sweeps = 160, largest_in_lanes = 4096;

// Solves up to `wide` grids. Returns for how many there is something to say.
template <typename T>
int group(const Call<T>& c, int64_t first, int64_t count, Grid& g, GridLanes& lanes) {
    int64_t open[wide], left = count, sweeps = 0;
    int told = 0;
    g.fit(c.n, c.w);
    for (int64_t l = 0; l < count; ++l) open[l] = l;
    const bool in_lanes = c.n <= largest_in_lanes;
    if (in_lanes) {
        lanes.fit(c.n, c.w);
        bool whole = true;
        for (int64_t l = 0; l < wide; ++l) {
            if (l < count) take(g, c, first + l);  // what is left over repeats the last
            lanes.put(g, l);
            whole = whole && g.whole;
        }
        for (int64_t l = 0; l < wide && !whole; ++l) {
            if (l < count) take(g, c, first + l);
            lanes.put_bounds(g, l);
        }
        lanes.begin();
        for (int64_t next = std::min(sweeps_at_first, c.rules.most);; next = sweeps + sweeps * 3 / 5) {
            for (next = std::min(next, c.rules.most); sweeps < next; ++sweeps) {
                const float step = sweeps == 0 ? 0.5f : sweeps < 16 ? 0.7f : sweeps < 40 ? 0.8f : 0.88f;
                if (whole) sweep<true>(lanes, step);
                else sweep<false>(lanes, step);
            }
            lanes.end();
            int64_t still = 0;
            for (int64_t k = 0; k < left; ++k) {
                take(g, c, first + open[k]);
                lanes.get(g, open[k]);
                if (certificate(g) <= tolerance_of(g, c.rules)) told += give(g, c, first + open[k], 0.0);
                else open[still++] = open[k];
            }
            left = still;
            // One goes on alone: a sweep takes as long for one grid as for all, and as ten steps of one alone.
            if (left < 2 || sweeps >= most_sweeps || sweeps >= c.rules.most) break;
        }
    }
    for (int64_t k = 0; k < left; ++k) {
        take(g, c, first + open[k]);
        if (in_lanes) lanes.get(g, open[k]);
        else
            for (int d = 0; d < 2; ++d) std::fill(g.u[d], g.u[d] + g.n, 0.0);
        const double error = solve(g, c.rules, sweeps);
        told += give(g, c, first + open[k], error);
    }
    return told;
}

// The mean of x over every region of a grid.
template <typename T>
INLINE void averaged(const T* x, const int32_t* label, T* out, int64_t n, double* sum, double* size) {
    for (int64_t i = 0; i < n; ++i) sum[i] = size[i] = 0.0;
    for (int64_t i = 0; i < n; ++i) sum[label[i]] += static_cast<double>(x[i]), size[label[i]] += 1.0;
    for (int64_t i = 0; i < n; ++i) sum[i] /= size[i] > 0.0 ? size[i] : 1.0;
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[label[i]]);
}

}  // namespace

#define REGIONS(T, NAME)                                                                                              \
    /* Regions of `rows` grids, the pull on them, the smoothed scores minus `middle`, -inf where a cell does not */   \
    /* take part. `error` is zero, the bound of a grid that is not certified, or NaN if its scores or gamma are not */ \
    /* finite: the number of these is returned. Grids take different times: threads fetch a few at a time. */         \
    EXPORT int regard_regions_##NAME(const T* s, const T* gamma, const uint8_t* mask, int32_t* label, T* pull,        \
                                     T* smooth, T* middle, double* error, int64_t rows, int64_t n, int64_t w,         \
                                     int64_t masked, int64_t most, int64_t every, double step, double tolerance,      \
                                     int threads) {                                                                   \
        const Call<T> call = {s, gamma, masked ? mask : nullptr, label, pull, smooth, middle, error, n, w,            \
                              {most, every, step, tolerance}};                                                        \
        const int64_t groups = (rows + wide - 1) / wide;                                                              \
        const int parts = threads_for(rows * n * 100, threads);                                                       \
        int told = 0;                                                                                                 \
        PARALLEL(num_threads(parts) schedule(dynamic) reduction(+ : told)) for (int64_t b = 0; b < groups; ++b) {     \
            static thread_local Grid grid = {};                                                                       \
            static thread_local GridLanes lanes = {};                                                                 \
            told += group(call, b * wide, std::min(wide, rows - b * wide), grid, lanes);                              \
        }                                                                                                             \
        return told;                                                                                                  \
    }                                                                                                                 \
    /* The mean of x over each region. */                                                                             \
    EXPORT int regard_region_means_##NAME(const T* x, const int32_t* label, T* out, int64_t rows, int64_t n,          \
                                          int threads) {                                                              \
        const int64_t block = 16, blocks = (rows + block - 1) / block;                                                \
        PARALLEL(num_threads(threads_for(rows * n, threads)) schedule(dynamic)) for (int64_t b = 0; b < blocks; ++b) { \
            static thread_local std::vector<double> memory;                                                           \
            memory.resize(2 * n);                                                                                     \
            for (int64_t r = b * block; r < std::min(rows, (b + 1) * block); ++r)                                     \
                averaged(x + r * n, label + r * n, out + r * n, n, memory.data(), memory.data() + n);                 \
        }                                                                                                             \
        return 0;                                                                                                     \
    }

REGIONS(float, f32)
REGIONS(double, f64)
