// CRC-32 and CRC-32C of many segments of bytes.
//
// A segment is cut into pieces, each the work of one warp. A CRC is linear: that of a segment is the sum (XOR) of what its
// pieces give, each multiplied by x^(8 * bytes that follow it) modulo the polynomial. So pieces are independent, and each
// adds its part to the result by an atomic.
//
// In a piece, lane l takes the words l, l + 32, l + 64, ...: loads are whole lines. Advancing a lane's state by a row of 128
// bytes is a multiplication by x^1024, by four tables of 256 words in shared memory.
//
// Numbers are in the reflected order: bit 31 is x^0.
#include "pieces.cuh"

#define THREADS 256
#define WARPS (THREADS / LANES)

struct CrcJob {
    const Piece *pieces;
    u64 count;
    u32 *results;  // one for each segment, zero before
    u32 polynomial;
    u32 row;         // x^1024
    u32 powers[64];  // x^(8 * 2^k)
};
static_assert(sizeof(CrcJob) == 288);  // what is written in checksum.rs

// a * b modulo the polynomial.
static __device__ u32 multiply(u32 a, u32 b, u32 polynomial) {
    u32 product = 0;
#pragma unroll 4
    for (u32 i = 0; i < 32; i++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = (b >> 1) ^ (polynomial & (0u - (b & 1)));
    }
    return product;
}

// x^(8 * bytes), by all lanes of a warp: each has the factors of two bits of the number.
static __device__ u32 power(const CrcJob *job, u64 bytes) {
    const u32 one = 0x80000000u;
    u32 lane = threadIdx.x % LANES;
    u32 factor = (bytes >> lane) & 1 ? job->powers[lane] : one;
    if (bytes >> 32) {
        u32 high = (bytes >> (lane + 32)) & 1 ? job->powers[lane + 32] : one;
        factor = multiply(factor, high, job->polynomial);
    }
#pragma unroll 1
    for (u32 distance = 16; distance > 0; distance /= 2)
        factor = multiply(factor, __shfl_xor_sync(ALL_LANES, factor, distance), job->polynomial);
    return factor;
}

KERNEL(crc, THREADS)(const __grid_constant__ CrcJob given) {
    const CrcJob *job = &given;
    __shared__ u32 tables[4][256];
    u32 polynomial = job->polynomial;
    for (u32 i = threadIdx.x; i < 1024; i += THREADS)
        tables[i / 256][i % 256] = multiply((i % 256) << (i / 256 * 8), job->row, polynomial);
    __syncthreads();

    u32 lane = threadIdx.x % LANES;
    u64 warps = (u64)gridDim.x * WARPS;
    for (u64 at = (u64)blockIdx.x * WARPS + threadIdx.x / LANES; at < job->count; at += warps) {
        const Piece *piece = &job->pieces[at];
        u64 begin = piece->data, end = begin + piece->len;
        // Whole words, from the one that the first byte is in. Bytes before the piece count as zeros, which change
        // nothing, and so does a row that is not full: rows end where the words end.
        u64 base = begin & ~3ull;
        u64 words = end > base ? (end - base) / 4 : 0;
        u64 rows = (words + LANES - 1) / LANES;
        u64 missing = rows * LANES - words;
        u32 state = 0;
        for (u64 row = 0; row < rows; row++) {
            u64 index = row * LANES + lane;
            u32 word = 0;
            if (index >= missing) {
                index -= missing;
                word = *(const u32 *)(base + index * 4);
                if (index == 0) word &= ALL_LANES << (begin % 4 * 8);
            }
            state = tables[0][state & 255] ^ tables[1][state >> 8 & 255] ^ tables[2][state >> 16 & 255] ^
                    tables[3][state >> 24] ^ word;
        }
        // x^(32 * words that follow in the row, and its own): a lane is 4 bytes from the next.
#pragma unroll 1
        for (u32 k = 0; k < 6; k++)
            if ((LANES - lane) >> k & 1) state = multiply(state, job->powers[k + 2], polynomial);
        for (u32 distance = 16; distance > 0; distance /= 2) state ^= __shfl_xor_sync(ALL_LANES, state, distance);
        // Up to three bytes that are no word, or all if the piece lies inside of one.
        for (u64 byte = words > 0 ? base + words * 4 : begin; byte < end; byte++) {
            state ^= *(const u8 *)byte;
            for (u32 i = 0; i < 8; i++) state = (state >> 1) ^ (polynomial & (0u - (state & 1)));
        }
        u32 part = multiply(state, power(job, piece->after), polynomial);
        if (piece->first) {
            // A CRC begins with all ones, and its bits are turned over at the end.
            u32 ones = multiply(ALL_LANES, power(job, piece->after + piece->len), polynomial);
            part ^= ones ^ ALL_LANES;
        }
        if (lane == 0) atomicXor(&job->results[piece->segment], part);
    }
}
