// Records of TFRecord: where they are in bytes that nobody has looked at, and whether their checksums are right.
//
// A record is `u64 length`, `u32` masked CRC-32C of that, the data, `u32` masked CRC-32C of the data. Any place at which a length that
// can be and its checksum stand is a candidate; a record may hold a TFRecord, so candidates are not yet records. Those are the
// ones that a chain from the first leads to.
#include "pieces.cuh"
#include "records.cuh"
#include "scan.cuh"

#define THREADS 128
#define WARPS (THREADS / LANES)
#define EACH 4
#define TILE (THREADS * EACH)
#define HEADER 12
#define OVERHEAD 16
#define PIECE (64 << 10)

static __device__ u32 load32(const u8 *at) {
    return at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24;
}

static __device__ u32 mask(u32 crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

static __device__ u32 crc_of_length(u64 length) {
    u32 crc = ALL_LANES ^ (u32)length;
#pragma unroll 4
    for (u32 i = 0; i < 32; i++) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1)));
    crc ^= (u32)(length >> 32);
#pragma unroll 4
    for (u32 i = 0; i < 32; i++) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1)));
    return ~crc;
}

struct FindJob {
    const u8 *bytes;   // at a multiple of 4
    u64 len;           // of the window
    u64 left;          // bytes of the file from the window's first on
    u64 most;          // bytes of a record
    u64 *counts;       // for each tile
    const u64 *firsts;  // sums of those
    Record *candidates;
    u64 room;
};
static_assert(sizeof(FindJob) == 64);  // what `Device::frames` in frames.rs writes

// Four bytes, those past the end of the window zero.
static __device__ u32 word(const FindJob *job, u64 at) {
    if (at + 4 <= job->len) return *(const u32 *)(job->bytes + at);
    u32 value = 0;
    for (u32 i = 0; i < 4; i++)
        if (at + i < job->len) value |= (u32)job->bytes[at + i] << (8 * i);
    return value;
}

// Which of the four places from `at` on, a multiple of 4, are candidates, and their lengths.
static __device__ u32 candidates(const FindJob *job, u64 at, u64 *lengths) {
    if (at + HEADER > job->len) return 0;
    u32 words[4];
    for (u32 i = 0; i < 4; i++) words[i] = word(job, at + 4 * i);
    u32 found = 0;
    for (u32 i = 0; i < EACH; i++) {
        u32 part[3];
        for (u32 k = 0; k < 3; k++) part[k] = __funnelshift_r(words[k], words[k + 1], 8 * i);
        u64 length = (u64)part[1] << 32 | part[0];
        lengths[i] = length;
        u64 here = at + i;
        if (here + HEADER > job->len || job->left - here < OVERHEAD) continue;
        // Nearly all places fail here.
        if (length > job->left - here - OVERHEAD || length > job->most) continue;
        if (mask(crc_of_length(length)) == part[2]) found |= 1u << i;
    }
    return found;
}

KERNEL(frames_count, THREADS)(const __grid_constant__ FindJob given) {
    const FindJob *job = &given;
    __shared__ u64 room[WARPS];
    u64 tiles = (job->len + TILE - 1) / TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 lengths[EACH], total;
        u32 found = candidates(job, tile * TILE + threadIdx.x * EACH, lengths);
        block_exclusive<WARPS>(__popc(found), room, &total);
        if (threadIdx.x == 0) job->counts[tile] = total;
    }
}

KERNEL(frames_find, THREADS)(const __grid_constant__ FindJob given) {
    const FindJob *job = &given;
    __shared__ u64 room[WARPS];
    u64 tiles = (job->len + TILE - 1) / TILE;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 lengths[EACH], total, at = tile * TILE + threadIdx.x * EACH;
        u32 found = candidates(job, at, lengths);
        u64 to = job->firsts[tile] + block_exclusive<WARPS>(__popc(found), room, &total);
        for (u32 i = 0; i < EACH; i++) {
            if (!(found >> i & 1)) continue;
            if (to < job->room) {
                job->candidates[to].data = (u64)job->bytes + at + i + HEADER;
                job->candidates[to].len = lengths[i];
            }
            to++;
        }
    }
}

struct LinkJob {
    const Record *candidates;  // in the order of their places
    u64 count;
    u64 *jump;  // which one follows each; `count`: none
    u64 *odd;   // how many are not followed by the next
};
static_assert(sizeof(LinkJob) == 32);  // the same

KERNEL(frames_link, THREADS)(const __grid_constant__ LinkJob given) {
    const LinkJob *job = &given;
    for (u64 i = thread_number(); i < job->count; i += thread_count()) {
        u64 next = job->candidates[i].data + job->candidates[i].len + OVERHEAD;
        u64 low = i + 1, high = job->count;
        // Nearly always the next one.
        if (low < high && job->candidates[low].data == next) {
            job->jump[i] = low;
            continue;
        }
        while (low < high) {
            u64 middle = low + (high - low) / 2;
            if (job->candidates[middle].data < next)
                low = middle + 1;
            else
                high = middle;
        }
        bool found = low < job->count && job->candidates[low].data == next;
        job->jump[i] = found ? low : job->count;
        if (i + 1 < job->count) atomicAdd(job->odd, 1ull);
    }
}

struct JumpJob {
    const u64 *jump;
    const u64 *marks;
    u64 *jump_twice;
    u64 *marks_after;  // zero before
    u64 count;
};
static_assert(sizeof(JumpJob) == 40);  // what is written there

// Marks what is as far again from the first as what is marked.
KERNEL(frames_jump, THREADS)(const __grid_constant__ JumpJob given) {
    const JumpJob *job = &given;
    for (u64 i = thread_number(); i < job->count; i += thread_count()) {
        u64 to = job->jump[i];
        job->jump_twice[i] = to < job->count ? job->jump[to] : job->count;
        if (job->marks[i]) {
            atomicOr(&job->marks_after[i], 1ull);
            if (to < job->count) atomicOr(&job->marks_after[to], 1ull);
        }
    }
}

struct PickJob {
    const Record *candidates;
    const u64 *marks;
    const u64 *firsts;  // sums of the marks
    u64 count;
    Record *records;
};
static_assert(sizeof(PickJob) == 40);  // the same

KERNEL(frames_pick, THREADS)(const __grid_constant__ PickJob given) {
    const PickJob *job = &given;
    for (u64 i = thread_number(); i < job->count; i += thread_count())
        if (job->marks[i]) job->records[job->firsts[i]] = job->candidates[i];
}

struct CheckJob {
    const Record *records;
    u64 count;
    u64 *counts;        // of pieces, for each record
    const u64 *firsts;  // sums of those
    Piece *pieces;
    u64 room;         // of pieces; as many as there can be
    const u32 *crcs;  // of the data of each record; null: not checked
    u64 *bad;         // becomes the least record that is wrong
};
static_assert(sizeof(CheckJob) == 64);  // the same

KERNEL(frames_piece_counts, THREADS)(const __grid_constant__ CheckJob given) {
    const CheckJob *job = &given;
    for (u64 i = thread_number(); i < job->count; i += thread_count()) {
        u64 len = job->records[i].len;
        job->counts[i] = len == 0 ? 1 : (len - 1) / PIECE + 1;
    }
}

KERNEL(frames_pieces, THREADS)(const __grid_constant__ CheckJob given) {
    const CheckJob *job = &given;
    u64 pieces = job->firsts[job->count];
    for (u64 at = thread_number(); at < job->room; at += thread_count()) {
        Piece piece = {0, 0, 0, 0, 0};
        if (at < pieces) {
            u64 low = 0, high = job->count;
            while (high - low > 1) {
                u64 middle = low + (high - low) / 2;
                if (job->firsts[middle] <= at)
                    low = middle;
                else
                    high = middle;
            }
            u64 from = (at - job->firsts[low]) * PIECE, rest = job->records[low].len - from;
            piece.data = job->records[low].data + from;
            piece.len = rest < PIECE ? (u32)rest : PIECE;
            piece.after = rest - piece.len;
            piece.segment = low;
            piece.first = from == 0;
        }
        job->pieces[at] = piece;
    }
}

KERNEL(frames_check, THREADS)(const __grid_constant__ CheckJob given) {
    const CheckJob *job = &given;
    for (u64 i = thread_number(); i < job->count; i += thread_count()) {
        u64 len = job->records[i].len;
        const u8 *header = (const u8 *)job->records[i].data - HEADER;
        const u8 *footer = (const u8 *)job->records[i].data + len;
        u64 length = (u64)load32(header + 4) << 32 | load32(header);
        bool fine = length == len && mask(crc_of_length(length)) == load32(header + 8);
        if (fine && job->crcs) fine = mask(job->crcs[i]) == load32(footer);
        if (!fine) atomicMin(job->bad, i);
    }
}
