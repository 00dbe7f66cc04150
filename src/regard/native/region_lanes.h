// Relaxation of the duals of several grids at once, one in every lane of a register, in single precision.
//
// The edges are visited in turn: of a row those at even columns, those at odd ones, those to the next row. Each takes
// the value that makes its two cells equal, a bit beyond it (over-relaxation), inside its bounds. Where regions are small
// a dozen sweeps find them; the certificate is in double.
#pragma once

#include "products.h"
#include "region_certificate.h"

namespace {

struct GridLanes {
    int64_t n, w, room;
    std::vector<float> memory;
    float *q, *dual[2], *bound[2], *rows[2];
    float cap[wide];

    void fit(int64_t cells, int64_t width) {
        w = width;
        if (n == cells) return;
        n = cells, room = padded(n);
        constexpr int64_t names = 7;
        memory.assign(names * room * wide + wide, 0.0f);
        float* start = memory.data();
        while (reinterpret_cast<uintptr_t>(start) % (4 * wide) != 0) ++start;
        float** all[names] = {&q, &dual[0], &dual[1], &bound[0], &bound[1], &rows[0], &rows[1]};
        for (int64_t i = 0; i < names; ++i) *all[i] = start + i * room * wide;
    }

    // Puts a grid into a row, which `begin` makes a lane of q; `put_bounds` is needed where a cell is masked.
    void put(const Grid& g, int64_t lane) {
        cap[lane] = static_cast<float>(g.cap);
        for (int64_t i = 0; i < n; ++i) rows[0][lane * room + i] = static_cast<float>(g.s[i]);
    }

    void put_bounds(const Grid& g, int64_t lane) {
        for (int d = 0; d < 2; ++d)
            for (int64_t i = 0; i < n; ++i) bound[d][i * wide + lane] = static_cast<float>(g.upper[d][i]);
    }

    void begin() {
        for (int64_t j = 0; j < room; j += wide) {
            Wide square[wide];
            transposed(rows[0] + j, room, square);
            for (int64_t i = 0; i < wide; ++i) store(q + (j + i) * wide, square[i]);
        }
        for (int d = 0; d < 2; ++d) std::fill(dual[d], dual[d] + room * wide, 0.0f);
    }

    // Leaves the duals of every grid in a row.
    void end() {
        for (int d = 0; d < 2; ++d)
            for (int64_t j = 0; j < room; j += wide) {
                Wide square[wide];
                transposed(dual[d] + j * wide, wide, square);
                for (int64_t i = 0; i < wide; ++i) store(rows[d] + i * room + j, square[i]);
            }
    }

    // Gives the duals of a lane to its grid, at a bound exactly where they are in the lane, and computes q.
    void get(Grid& g, int64_t lane) const {
        const double most = static_cast<double>(cap[lane]);
        for (int d = 0; d < 2; ++d) {
            const float* row = rows[d] + lane * room;
            const double* upper = g.upper[d];
            double* u = g.u[d];
            SIMD()
            for (int64_t i = 0; i < n; ++i) {
                const double x = static_cast<double>(row[i]), here = upper[i];
                const double low = x < -here ? -here : x, inside = low > here ? here : low;
                const double above = x >= most ? here : inside;
                u[i] = x <= -most ? -here : above;
            }
        }
        primal(g, g.s, g.u, g.q);
    }
};

INLINE void relax(float* first, float* second, float* dual, const Wide& most, float step) {
    const Wide a = load(first), b = load(second), old = load(dual);
    Wide next = old + (b - a) * step;
    next = choose(next > most, most, next);
    next = choose(next < -most, -most, next);
    const Wide move = next - old;
    store(first, a + move);
    store(second, b - move);
    store(dual, next);
}

// One sweep over all edges. With `whole`, every cell of every grid takes part.
template <bool whole>
INLINE void sweep(GridLanes& x, float step) {
    const int64_t w = x.w, n = x.n;
    const Wide cap = load(x.cap);
    for (int64_t row = 0; row < n; row += w) {
        for (int64_t start = row; start < row + 2; ++start)
            for (int64_t i = start; i + 1 < row + w; i += 2) {
                const int64_t at = i * wide;
                relax(x.q + at, x.q + at + wide, x.dual[0] + at, whole ? cap : load(x.bound[0] + at), step);
            }
        if (row + w == n) break;
        for (int64_t i = row; i < row + w; ++i) {
            const int64_t at = i * wide;
            relax(x.q + at, x.q + at + w * wide, x.dual[1] + at, whole ? cap : load(x.bound[1] + at), step);
        }
    }
}

}  // namespace
