// Exclusive sums of rows of numbers.
//
// Three launches, as no block reads what another of its launch wrote: sums of tiles, sums of those, and then each number.
#include "scan.cuh"

#define THREADS 256
#define WARPS (THREADS / LANES)
#define EACH 4
#define TILE (THREADS * EACH)

struct ScanJob {
    const u64 *input;  // rows, each of `length` numbers
    u64 *output;       // rows, each of `length` + 1 numbers: the last one is the sum of all
    u64 *sums;         // rows, each of `tiles` numbers
    u64 rows;
    u64 length;
    u64 tiles;   // TILE numbers each; of a row
    u64 *totals;  // the sum of each row, once more; null: not wanted
};
static_assert(sizeof(ScanJob) == 56);  // what `rows` in scan.rs writes

static __device__ u64 load(const ScanJob *job, u64 row, u64 at) {
    return at < job->length ? job->input[row * job->length + at] : 0;
}

KERNEL(scan_reduce, THREADS)(const __grid_constant__ ScanJob given) {
    const ScanJob *job = &given;
    __shared__ u64 room[WARPS];
    for (u64 item = blockIdx.x; item < job->rows * job->tiles; item += gridDim.x) {
        u64 row = item / job->tiles, first = item % job->tiles * TILE + threadIdx.x;
        u64 sum = 0, total;
        for (u32 i = 0; i < EACH; i++) sum += load(job, row, first + i * THREADS);
        block_exclusive<WARPS>(sum, room, &total);
        if (threadIdx.x == 0) job->sums[item] = total;
    }
}

KERNEL(scan_sums, THREADS)(const __grid_constant__ ScanJob given) {
    const ScanJob *job = &given;
    __shared__ u64 room[WARPS];
    for (u64 row = blockIdx.x; row < job->rows; row += gridDim.x) {
        u64 *sums = job->sums + row * job->tiles, before = 0;
        for (u64 first = 0; first < job->tiles; first += THREADS) {
            u64 at = first + threadIdx.x, total;
            u64 value = at < job->tiles ? sums[at] : 0;
            u64 sum = block_exclusive<WARPS>(value, room, &total);
            if (at < job->tiles) sums[at] = before + sum;
            before += total;
        }
        if (threadIdx.x != 0) continue;
        job->output[row * (job->length + 1) + job->length] = before;
        if (job->totals) job->totals[row] = before;
    }
}

KERNEL(scan_emit, THREADS)(const __grid_constant__ ScanJob given) {
    const ScanJob *job = &given;
    __shared__ u64 room[WARPS];
    for (u64 item = blockIdx.x; item < job->rows * job->tiles; item += gridDim.x) {
        u64 row = item / job->tiles, first = item % job->tiles * TILE;
        u64 before = job->sums[item];
        for (u32 i = 0; i < EACH; i++) {
            u64 at = first + i * THREADS + threadIdx.x, total;
            u64 sum = block_exclusive<WARPS>(load(job, row, at), room, &total);
            if (at < job->length) job->output[row * (job->length + 1) + at] = before + sum;
            before += total;
        }
    }
}
