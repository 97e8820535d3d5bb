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
#define EACH 32
#define TILE (THREADS * EACH)
// Candidates of a tile whose places are kept. A record takes 16 bytes, and one with an example in it about 40, so that tiles with more of them
// are rare: those are looked at again.
#define ROOM 128
#define HEADER 12
#define OVERHEAD 16
#define PIECE (64 << 10)
#define SUM_OF_ZERO 0x7980329u  // of the length 0

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
    u16 *places;       // ROOM for each tile: where in it the first candidates begin
    const u64 *firsts;  // sums of the counts
    Record *candidates;
    u64 room;
};
static_assert(sizeof(FindJob) == 72);  // what `Device::frames` in frames.rs writes

// Four bytes, those past the end of the window zero.
static __device__ u32 word(const FindJob *job, u64 at) {
    if (at + 4 <= job->len) return *(const u32 *)(job->bytes + at);
    u32 value = 0;
    for (u32 i = 0; i < 4; i++)
        if (at + i < job->len) value |= (u32)job->bytes[at + i] << (8 * i);
    return value;
}

// The length at any place, and the four bytes behind it.
static __device__ u64 header(const FindJob *job, u64 at, u32 *sum) {
    u64 base = at & ~3ull;
    u32 words[4], shift = at % 4 * 8;
    for (u32 i = 0; i < 4; i++) words[i] = word(job, base + 4 * i);
    *sum = __funnelshift_r(words[2], words[3], shift);
    return (u64)__funnelshift_r(words[1], words[2], shift) << 32 | __funnelshift_r(words[0], words[1], shift);
}

// Whether a record can begin at `at`, where there is such a header.
static __device__ bool can_be(const FindJob *job, u64 at, u64 length, u32 sum) {
    if (at + HEADER > job->len || job->left - at < OVERHEAD) return false;
    if (length > job->left - at - OVERHEAD || length > job->most) return false;
    // Parts that are filled with zeros look like the length 0 at every place.
    return (length == 0 ? SUM_OF_ZERO : mask(crc_of_length(length))) == sum;
}

static __device__ bool is_candidate(const FindJob *job, u64 at) {
    u32 sum;
    u64 length = header(job, at, &sum);
    return can_be(job, at, length, sum);
}

static __device__ void put(const FindJob *job, u64 to, u64 at) {
    if (to >= job->room) return;
    u32 sum;
    job->candidates[to].len = header(job, at, &sum);
    job->candidates[to].data = (u64)job->bytes + at + HEADER;
}

// Where a word of a tile is in shared memory: one is left out behind those of each thread, so that threads which go through theirs side by side
// find different banks.
static __device__ u32 spot(u32 index) { return index + index / (EACH / 4); }

// How many candidates each tile has, and where they begin: all that is read of the window but headers.
KERNEL(frames_count, THREADS)(const __grid_constant__ FindJob given) {
    const FindJob *job = &given;
    __shared__ u64 room[WARPS];
    __shared__ u32 words[(TILE + EACH) / 4 + THREADS];
    u64 tiles = (job->len + TILE - 1) / TILE;
    // No length that can be is more.
    u64 most = job->left < job->most ? job->left : job->most;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u64 begin = tile * TILE;
        // With those that the last header goes on in.
        for (u32 i = threadIdx.x; i < TILE / 4 + HEADER / 4; i += THREADS) words[spot(i)] = word(job, begin + 4 * i);
        __syncthreads();
        u32 first = threadIdx.x * (EACH / 4), found = 0;
        u32 low = words[spot(first)], high = words[spot(first + 1)];
#pragma unroll
        for (u32 k = 0; k < EACH / 4; k++) {
            u32 next = words[spot(first + k + 2)];
            for (u32 i = 0; i < 4; i++) {
                u64 length = (u64)__funnelshift_r(high, next, 8 * i) << 32 | __funnelshift_r(low, high, 8 * i);
                // Nearly all places fail here.
                if (length <= most) found |= 1u << (4 * k + i);
            }
            low = high;
            high = next;
        }
        for (u32 rest = found; rest; rest &= rest - 1) {
            u32 place = __ffs(rest) - 1, at = first + place / 4, shift = place % 4 * 8;
            u32 header[4];
            for (u32 i = 0; i < 4; i++) header[i] = words[spot(at + i)];
            u64 length = (u64)__funnelshift_r(header[1], header[2], shift) << 32 | __funnelshift_r(header[0], header[1], shift);
            u32 sum = __funnelshift_r(header[2], header[3], shift);
            if (!can_be(job, begin + threadIdx.x * EACH + place, length, sum)) found &= ~(1u << place);
        }
        // Most tiles of large records have none.
        if (!__syncthreads_or(found != 0)) {
            if (threadIdx.x == 0) job->counts[tile] = 0;
            continue;
        }
        u64 total, to = block_exclusive<WARPS>(__popc(found), room, &total);
        for (; found && to < ROOM; found &= found - 1, to++)
            job->places[tile * ROOM + to] = (u16)(threadIdx.x * EACH + __ffs(found) - 1);
        if (threadIdx.x == 0) job->counts[tile] = total;
    }
}

// A warp for each tile.
KERNEL(frames_find, THREADS)(const __grid_constant__ FindJob given) {
    const FindJob *job = &given;
    u32 lane = threadIdx.x % LANES;
    u64 tiles = (job->len + TILE - 1) / TILE, warps = thread_count() / LANES;
    for (u64 tile = thread_number() / LANES; tile < tiles; tile += warps) {
        u64 to = job->firsts[tile], count = job->firsts[tile + 1] - to;
        if (count <= ROOM) {
            for (u64 i = lane; i < count; i += LANES) put(job, to + i, tile * TILE + job->places[tile * ROOM + i]);
            continue;
        }
        for (u32 begin = 0; begin < TILE; begin += LANES) {
            u64 at = tile * TILE + begin + lane;
            bool found = is_candidate(job, at);
            u32 all = __ballot_sync(ALL_LANES, found);
            if (found) put(job, to + __popc(all & ((1u << lane) - 1)), at);
            to += __popc(all);
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
