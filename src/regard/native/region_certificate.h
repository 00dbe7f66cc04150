// Regions and pull of a grid read off its duals, and the certificate of the values they give.
#pragma once

#include "region_grid.h"
#include "support.h"

namespace {

INLINE int32_t first_of(int32_t* parent, int32_t cell) {
    while (parent[cell] != cell) cell = parent[cell] = parent[parent[cell]];
    return cell;
}

INLINE double sign_of(double x) { return static_cast<double>((x > 0.0) - (x < 0.0)); }

// The directions of the edges at their bounds, and the value of every cell that no free edge joins to another.
INLINE void read_signs(Grid& g) {
    const int64_t shift[2] = {1, g.w};
    for (int d = 0; d < 2; ++d) {
        const double *u = g.u[d], *upper = g.upper[d], *exists = g.exists[d], *q = g.q, *across = g.q + shift[d];
        double* sign = g.sign[d];
        if (g.cap > 0.0) {
            SIMD()
            for (int64_t i = 0; i < g.filled; ++i)
                sign[i] = (u[i] >= upper[i] ? 1.0 : 0.0) - (u[i] <= -upper[i] ? 1.0 : 0.0);
        } else {  // the dual has no sign: the direction is that of the scores
            for (int64_t i = 0; i < g.filled; ++i) sign[i] = exists[i] * sign_of(across[i] - q[i]);
        }
    }
    const double *right = g.sign[0], *left = g.sign[0] - 1, *down = g.sign[1], *up = g.sign[1] - g.w, cap = g.cap;
    for (int d = 0; d < 2; ++d) {
        const double *sign = g.sign[d], *exists = g.exists[d], some = cap > 0.0 ? 1.0 : 0.0;
        float* free = g.free[d];
        SIMD()
        for (int64_t i = 0; i < g.filled; ++i) free[i] = static_cast<float>(some * (exists[i] - std::abs(sign[i])));
    }
    SIMD()
    for (int64_t i = 0; i < g.filled; ++i) {
        g.force[i] = right[i] + down[i] - left[i] - up[i];
        g.value[i] = g.s[i] + cap * g.force[i];
        g.sum[i] = g.size[i] = g.pulls[i] = 0.0;
    }
}

// Joins cells along the edges whose dual is strictly inside its bounds. `cells` receives those that are joined to
// another, `degree` and `link` the trees that span their regions. Returns their number.
INLINE int64_t join(Grid& g) {
    const int64_t n = g.n, w = g.w;
    int32_t *parent = g.parent, *degree = g.degree, *link = g.link;
    for (int64_t i = 0; i < n; ++i) parent[i] = static_cast<int32_t>(i), degree[i] = link[i] = 0;
    int64_t cells = 0;
    for (int d = 0; d < 2; ++d) {
        const int64_t edges = above(g.free[d], n, 0.0f, g.edges);
        for (int64_t k = 0; k < edges; ++k) {
            const int32_t i = g.edges[k], edge = 2 * i + d, other = i + static_cast<int32_t>(d == 0 ? 1 : w);
            if (d == 0) {
                parent[other] = parent[i];  // the start of a run of cells, from left to right
            } else {
                const int32_t a = first_of(parent, i), b = first_of(parent, other);
                if (a == b) continue;
                parent[std::max(a, b)] = std::min(a, b);
            }
            for (const int32_t end : {i, other}) {
                g.cells[cells] = end;
                cells += degree[end]++ == 0;
                link[end] ^= edge;  // of a leaf it is the one edge
            }
        }
    }
    return cells;
}

// The values of the regions, which are means over their cells plus the pull (2.5.6). No branch: none could be foreseen.
INLINE void average(Grid& g, int64_t cells) {
    for (int64_t k = 0; k < cells; ++k) {
        const int32_t cell = g.cells[k];
        int32_t root = g.parent[cell];
        while (g.parent[root] != root) root = g.parent[root];
        g.parent[cell] = root;
        g.sum[root] += g.s[cell];
        g.size[root] += 1.0;
        g.pulls[root] += g.force[cell];
    }
    for (int64_t k = 0; k < cells; ++k) {
        const int32_t cell = g.cells[k], root = g.parent[cell];
        g.force[cell] = g.pulls[root] / g.size[root];
        g.value[cell] = g.sum[root] / g.size[root] + g.cap * g.force[cell];
    }
}

// Duals `full` that make every cell of a region equal, where the bounds allow it: what a cell has too much flows along
// the tree of its region, from the leaves on. So a few steps that find the regions suffice.
INLINE void complete(Grid& g, int64_t cells) {
    double* excess = g.sum;
    for (int d = 0; d < 2; ++d) std::copy(g.u[d], g.u[d] + g.n, g.full[d]);
    for (int64_t k = 0; k < cells; ++k) excess[g.cells[k]] = g.q[g.cells[k]] - g.value[g.cells[k]];
    for (int64_t k = 0; k < cells; ++k)
        for (int32_t cell = g.cells[k]; g.degree[cell] == 1;) {
            const int32_t edge = g.link[cell], first = edge >> 1;
            const int32_t second = first + static_cast<int32_t>(edge & 1 ? g.w : 1);
            const int32_t other = first ^ second ^ cell;
            const double most = g.upper[edge & 1][first], more = cell == first ? -excess[cell] : excess[cell];
            double& dual = g.full[edge & 1][first];
            dual = std::max(-most, std::min(most, dual + more));
            excess[other] += excess[cell];
            g.degree[cell] = 0, --g.degree[other], g.link[other] ^= edge;
            cell = other;
        }
}

// A bound on the error of the values: the root of twice the duality gap (2.5.5). It leaves the first cell of every
// cell's region in `parent`, the pull on it in `force`, and expects q = s - D^T u.
INLINE double certificate(Grid& g) {
    read_signs(g);
    const int64_t cells = join(g), shift[2] = {1, g.w};
    average(g, cells);
    complete(g, cells);
    primal(g, g.s, g.full, g.q);
    double gap = 0.0;
    SIMD(reduction(+ : gap))
    for (int64_t i = 0; i < g.n; ++i) gap += (g.value[i] - g.q[i]) * (g.value[i] - g.q[i]) / 2;
    // Regions of equal value may differ in the last digits, and then in the direction that counts.
    const double same = static_cast<double>(g.n) * std::numeric_limits<double>::epsilon();
    for (int d = 0; d < 2; ++d) {
        const double *value = g.value, *across = g.value + shift[d], *upper = g.upper[d], *u = g.full[d];
        SIMD(reduction(+ : gap))
        for (int64_t i = 0; i < g.n; ++i) {
            const double jump = across[i] - value[i], size = std::abs(jump);
            const double along = jump > 0.0 ? u[i] : -u[i];  // exactly the bound where it is met: nothing cancels
            gap += size > same ? (upper[i] - along) * size : 0.0;
        }
    }
    return std::sqrt(std::max(0.0, 2 * gap));
}

}  // namespace
