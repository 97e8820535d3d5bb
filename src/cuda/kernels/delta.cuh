// Streams of DELTA_BINARY_PACKED: a header, then blocks of a least delta, the widths of its miniblocks, and what deltas are above the
// least, packed. A miniblock has a multiple of 32 of them, a block one of 128.
#pragma once
#include "scan.cuh"
#include "columns.cuh"

// Deltas that a warp takes at once: four each lane. No block ends within them, and of miniblocks they have parts of four at most.
#define CHUNK 128u

// A stream, by the host.
struct Stream {
    u8 *values;  // where its values go; not of those that go to their rows
    u64 tiles;   // its first tile in the table of those of streams
    u32 page;    // in the table of pages
    u32 width;   // bytes of a value: 4 or 8
    u32 kind;
    u32 rows;  // whether values go to the rows of the column they are of
};
static_assert(sizeof(Stream) == 32);  // `STREAM` in columns/delta.rs

// NUMBERS may be more than the values of the page, as many as its rows, and the last block cut behind the last that is wanted; so does the
// `parquet` crate take them, and the check of pages before it. LENGTHS have to be as many as values, and something follows; NEXT_LENGTHS are
// the same behind the stream before in the table.
enum Kind { NUMBERS = 0, LENGTHS = 1, NEXT_LENGTHS = 2 };

// What is found of a stream.
struct Blocks {
    u64 first;  // its first value
    u32 minis;  // miniblocks of a block
    u32 mini;   // deltas of a miniblock
    u32 end;    // LENGTHS: what follows the stream in the body
    u32 unused;
};
static_assert(sizeof(Blocks) == 24);  // `BLOCKS` there

// 1,024 values of a stream, and the deltas behind each of them: where the first of these is. Nothing of that is known where there are none.
struct Checkpoint {
    u64 before;  // the sum of the deltas, then the first value; of lengths at last their sum, or NEGATIVE
    u64 least;   // of the block
    u32 stream;
    u32 widths;  // where those of the block's miniblocks are in the body
    u32 mini;    // the miniblock, in the block
    u32 data;    // and where it begins in the body
    u32 skip;    // deltas of the miniblock before the tile
    u32 wrong;   // `delta_known`: nobody reads on from here
};
static_assert(sizeof(Checkpoint) == 40);  // `CHECKPOINT` there

// One of the lengths of a tile is below 0. Others are below 2^31, and their sum is below 2^41.
#define NEGATIVE 0xffffffffffffffffull

struct DeltaJob {
    Job job;
    const Stream *streams;
    Blocks *blocks;
    Checkpoint *checkpoints;
    u64 stream_count;
    u64 checkpoint_count;
};
static_assert(sizeof(DeltaJob) == 160);  // `Job`, and five numbers that are written there

// A number of 7 bits a byte, ten bytes at most, read by a warp; `at` becomes what follows it. False if it does not end.
static __device__ bool read_number(const u8 *body, u32 &at, u32 end, u64 &number) {
    u32 lane = threadIdx.x % LANES;
    u32 byte = lane < 10 && at + lane < end ? body[at + lane] : 0x80;
    u32 lasts = __ballot_sync(ALL_LANES, byte < 0x80);
    if (!lasts) return false;
    u32 len = __ffs(lasts);
    u64 part = lane < len ? (u64)(byte & 0x7f) << (7 * lane) : 0;
    if (len > 1)
        for (u32 distance = 8; distance > 0; distance /= 2) part |= __shfl_xor_sync(ALL_LANES, part, distance);
    number = __shfl_sync(ALL_LANES, part, 0);
    at += len;
    return true;
}

// The same of a number with sign: 0, -1, 1, -2, and so on.
static __device__ bool read_signed(const u8 *body, u32 &at, u32 end, u64 &number) {
    if (!read_number(body, at, end, number)) return false;
    number = number >> 1 ^ (0 - (number & 1));
    return true;
}

static __device__ bool fits(u64 number, u32 width) { return width == 8 || (i64)number == (int)number; }

// Where a warp is in a stream: at the beginning of a chunk.
struct Cursor {
    u64 least;
    u32 widths;
    u32 mini;
    u32 data;
    u32 skip;
};

// The beginning of a block at `at`: the cursor goes to its first delta. Gives what is wrong, or 0.
static __device__ u32 open_block(const u8 *body, u32 at, u32 end, u32 minis, u32 width, Cursor &cursor) {
    if (!read_signed(body, at, end, cursor.least) || minis > end - at) return DELTA_HEADER;
    if (!fits(cursor.least, width)) return DELTA_RANGE;
    cursor.widths = at;
    cursor.mini = 0;
    cursor.data = at + minis;
    cursor.skip = 0;
    return 0;
}

// Goes on to the next block, if this one is at its end. `walk` has been there.
static __device__ void next_block(const u8 *body, u32 end, const Blocks *blocks, Cursor &cursor) {
    if (cursor.mini < blocks->minis) return;
    u32 at = cursor.data;
    if (!read_signed(body, at, end, cursor.least)) return;
    cursor.widths = at;
    cursor.mini = 0;
    cursor.data = at + blocks->minis;
    cursor.skip = 0;
}

// `count` bits, 64 at most, from bit `bit` after `from` on.
static __device__ u64 many_bits(const Job *job, const u8 *from, u64 bit, u32 count) {
    u32 low = some_bits(job, from, bit, least(count, 32));
    return count > 32 ? low | (u64)some_bits(job, from, bit + 32, count - 32) << 32 : low;
}

// Sizes of miniblocks have 32 bits: they are wanted of those that are there as a whole, as `walk` saw to. That of another is used by nobody, as no
// delta is wanted behind it.
//
// The next `count` deltas, less the least of the block: lane `l` gets the four from 4 l on, zeros past the last. `bits` becomes the largest width
// of any, in all lanes.
template <class Number>
static __device__ void read_chunk(const Job *job, const u8 *body, const Blocks *blocks, u32 count, Cursor &cursor, Number *above,
                                  u32 &bits) {
    u32 lane = threadIdx.x % LANES, mini = blocks->mini;
    // Of the miniblocks that the chunk has a part of, a lane each; those past the last delta have no width.
    u32 number = lane % 4;
    u64 begin = number ? (u64)number * mini - cursor.skip : 0;
    u32 own = begin < count ? body[cursor.widths + cursor.mini + number] : 0;
    // Where this lane is.
    u32 within = cursor.skip + lane / 8 * 32, data = cursor.data, of = 0, width = 0;
    u32 left = cursor.skip + CHUNK, next = cursor.data, passed = 0;
    bits = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 here = __shfl_sync(ALL_LANES, own, i), size = here * (mini / 8);
        bits = most(bits, here);
        if (of == i) {
            width = here;
            if (within >= mini) {
                within -= mini;
                data += size;
                of++;
            }
        }
        if (passed == i && left >= mini) {
            left -= mini;
            next += size;
            passed++;
        }
    }
    u64 bit = (u64)(within + lane % 8 * 4) * width;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        above[i] = 0;
        if (lane * 4 + i < count && width) {
            if (sizeof(Number) == 4)
                above[i] = some_bits(job, body + data, bit, width);
            else
                above[i] = (Number)many_bits(job, body + data, bit, width);
        }
        bit += width;
    }
    cursor.mini += passed;
    cursor.data = next;
    cursor.skip = left;
}
