// What the kernels of columns share: the tables that the host sends and the kernels fill, and reads of the arena.
//
// A page is cut into tiles of 1,024 rows, counted from its first. Everything that kernels find is in tables whose length the host
// knows: a page in `Found`, a tile in the arrays of `Tiles`.
#pragma once
#include "types.cuh"

#define TILE 1024u
#define THREADS 128u
#define WARPS (THREADS / LANES)
// Bytes of a value of fixed width at most, as the host sees to (`MOST_WIDTH` in `columns.rs`): those of a tile are 2^30, so that 32 bits have room
// for every product of rows and widths.
#define WIDEST (1u << 20)
static_assert((u64)TILE * WIDEST <= 1u << 30);

enum Encoding { PLAIN = 0, DICTIONARY = 1, RLE = 2, SPLIT = 3, DELTA_PACKED = 4, DELTA_LENGTH = 5, DELTA_BYTES = 6 };
// Of TEXT, whose width is 0, `strings.cu` makes what comes out; of INDICES these are what comes out.
enum Convert { BYTES = 0, WIDEN = 1, WIDEN_BIG_ENDIAN = 2, DAYS = 3, INT96 = 4, TEXT = 5, INDICES = 6 };

// As in `columns.rs`, which says what they are.
enum Check {
    DICTIONARY_LENGTH = 2,
    LEVELS_LENGTH = 3,
    LEVELS = 16,
    NULLS = 32,
    VALUES_LENGTH = 33,
    BIT_WIDTH = 34,
    TRAILING = 35,
    RUNS = 48,
    INDEX = 64,
    UTF8 = 65,
    LENGTH = 66,
    DELTA = 80,
    REPEATS = 112,
    REPEATS_REST = 118,
    LEVEL = 119,
    BEGIN = 120,
    CONTINUED = 121,
    FIXED_SIZE = 122,
    MARKS = 125,
    // Of a run.
    END = 1,
    HEADER = 2,
    RUN_LENGTH = 3,
    RUN_BYTES = 4,
    RUN_VALUE = 5,
    // Of a stream of deltas.
    DELTA_HEADER = 1,
    DELTA_BLOCK = 2,
    DELTA_COUNT = 3,
    DELTA_RANGE = 4,
    DELTA_WIDTH = 5,
    DELTA_SHORT = 6,
    DELTA_TEXT = 7,
    DELTA_KNOWN = 8,
};

enum PageFlag {
    // Levels were made slots and bits of the validity bitmap: entries are slots, and values begin at `def_len`.
    SLOTS = 1,
    // It is known from another time where the tiles begin in the levels, and in the values.
    KNOWN_LEVELS = 2,
    KNOWN_VALUES = 4,
    // `nesting`: it has to begin with a row, whatever its version.
    BEGINS = 8,
};

struct Page {
    const u8 *body;
    u64 first;  // its first row in the column
    u64 tiles;  // its first tile in the table
    u32 len;    // bytes of the body, less than 2^31
    u32 entries;
    u32 column;
    u32 number;   // in the column
    u32 def_len;  // bytes of levels in version 2
    u32 nulls;    // what the header says; all bits: nothing
    u32 v1;
    u32 encoding;
    u32 flags;    // of `PageFlag`
    u32 rep_len;  // `nesting`: bytes of levels of lists in version 2, in front of the others
};
static_assert(sizeof(Page) == 64);  // `PAGE` in columns/decode.rs

struct Column {
    const u8 *dictionary;
    u8 *values;
    u32 *validity;  // null: no row is null, and there are no levels
    u64 *error;     // least page << 32 | check
    u64 *nulls;
    u32 entries;  // of the dictionary
    u32 width;    // bytes of a value on pages, WIDEST at most; 0: bits
    u32 unit;     // bytes that a thread writes: 1, 2, 4 or 8
    u32 units;    // how many of them a value has
    u32 convert;
    u32 argument;  // BYTES: the first byte; INT96: units of a second
};
static_assert(sizeof(Column) == 64);  // `COLUMN` there

struct Found {
    u32 failed;   // nothing more is done for the page
    u32 section;  // where its values begin in the body
    u32 levels;   // where its levels end
    u32 values;   // how many there are
    u32 bits;     // width of runs of values
    u32 end;      // where these end
};
static_assert(sizeof(Found) == 24);  // `FOUND` there

// Where a value is in a page: the run, and how many of its values are before.
struct Mark {
    u32 byte;
    u32 skip;
};
static_assert(sizeof(Mark) == 8);  // `MARK` in columns/marks.rs

// What is found of tiles. A kernel asks for some of it, and of all tiles; what it does not ask for is not moved with it.
struct Tiles {
    Mark *levels;  // where its first level is
    Mark *values;  // the same for its first value; of TEXT in PLAIN the byte where that begins
    u32 *pages;
    u32 *bases;    // values of the page before it
    u32 *counts;   // and its own
};
static_assert(sizeof(Tiles) == 40);  // what `Tiles::describe` in columns/decode.rs writes

struct Job {
    const Page *pages;
    const Column *columns;
    Found *found;
    Tiles tiles;
    u64 page_count;
    u64 tile_count;
    u64 begin;    // of the arena
    u64 end;
    u64 floor;    // the same, to whole words inside of it
    u64 ceiling;
    u32 stage;    // `walk`: 0 levels, 1 values
    u32 unused;
};
static_assert(sizeof(Job) == 120);  // what `decode` there and `Table::job` in columns/nesting.rs write

static __device__ u32 most(u32 a, u32 b) { return a > b ? a : b; }

// The lowest `count` bits set, 32 at most.
static __device__ u32 ones(u32 count) { return count < 32 ? (1u << count) - 1 : ALL_LANES; }

static __device__ void report(const Column *column, const Page *page, u32 check) {
    atomicMin(column->error, (u64)page->number << 32 | check);
}

static __device__ u32 rows_of(const Page *page, u32 tile) { return least(TILE, page->entries - tile * TILE); }

// Up to eight bytes of the aligned words at `word`; those outside of the arena are zero, and not read.
static __device__ u64 at_the_edge(const Job *job, u64 word) {
    u64 value = 0;
#pragma unroll 1
    for (u32 i = 0; i < 8; i++)
        if (word + i >= job->begin && word + i < job->end) value |= (u64) * (const u8 *)(word + i) << (i * 8);
    return value;
}

// 32 bits from bit `shift` on of the two words at `word`, which is a multiple of four.
static __device__ u32 funnel(const Job *job, u64 word, u32 shift) {
    if (word >= job->floor && word + 8 <= job->ceiling) {
        u32 low = *(const u32 *)word;
        return shift ? __funnelshift_r(low, *(const u32 *)(word + 4), shift) : low;
    }
    return (u32)(at_the_edge(job, word) >> shift);
}

// Four bytes of the arena from any address in it; those past its end are zero.
static __device__ u32 four_bytes(const Job *job, u64 address) {
    return funnel(job, address & ~3ull, (u32)(address & 3) * 8);
}

static __device__ u64 eight_bytes(const Job *job, u64 address) {
    if (address % 8 == 0 && address >= job->floor && address + 8 <= job->ceiling) return *(const u64 *)address;
    return four_bytes(job, address) | (u64)four_bytes(job, address + 4) << 32;
}

// `count` bits (32 at most) from bit `bit` after `address` on.
static __device__ u32 some_bits(const Job *job, const u8 *from, u64 bit, u32 count) {
    u64 address = (u64)from + bit / 8;
    u32 shift = (u32)(address & 3) * 8 + (u32)(bit % 8);
    return funnel(job, address & ~3ull, shift) & ones(count);
}

// The bits of a tile's rows, by a warp: each lane gives those of 32 rows. Words that other tiles or pages have a part of are put
// together by atomics; the bitmap was zero before.
static __device__ void store_bits(u32 *bitmap, u64 bit, u32 rows, u32 bits) {
    u32 lane = threadIdx.x % LANES, shift = (u32)(bit % 32), end = shift + rows;
    u32 *words = bitmap + bit / 32;
    u32 before = __shfl_up_sync(ALL_LANES, bits, 1);
    u32 word = shift ? bits << shift | (lane ? before >> (32 - shift) : 0) : bits;
    if (lane * 32 < end) {
        if ((lane > 0 || shift == 0) && lane * 32 + 32 <= end)
            words[lane] = word;
        else
            atomicOr(&words[lane], word);
    }
    if (lane == LANES - 1 && end > TILE) atomicOr(&words[LANES], bits >> (32 - shift));
}

// The other way round.
static __device__ u32 load_bits(const u32 *bitmap, u64 bit, u32 rows) {
    u32 lane = threadIdx.x % LANES, shift = (u32)(bit % 32);
    if (lane * 32 >= rows) return 0;
    u32 count = least(32, rows - lane * 32);
    const u32 *word = bitmap + bit / 32 + lane;
    u32 bits = *word >> shift;
    if (shift + count > 32) bits |= word[1] << (32 - shift);
    return bits & ones(count);
}

// The sum over the lanes up to this one.
static __device__ u32 sum_to_lane(u32 value) {
    for (u32 distance = 1; distance < LANES; distance *= 2) {
        u32 other = __shfl_up_sync(ALL_LANES, value, distance);
        if (threadIdx.x % LANES >= distance) value += other;
    }
    return value;
}
