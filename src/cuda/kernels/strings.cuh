// What the kernels of strings share: their tables, and what UTF-8 is.
#pragma once
#include "columns.cuh"

// Where the values of a page are: from `base` on; value `rank` begins `gap` bytes after the one before ends, the first one at
// `start` + `gap`.
struct Source {
    u32 *ends;
    u64 base;
    u32 start;
    u32 gap;
};
static_assert(sizeof(Source) == 24);  // `SOURCE` in columns/strings.rs

// A column, beside `Column`.
struct Strings {
    u8 *offsets;      // of slots, and one more
    u8 *values;       // null: bytes are looked at, and not copied
    u32 *places;      // of the bytes of slots, from the base of their page's source on. Pages of
                      // DELTA_BYTES have none: `strings_place` writes none, and `strings_copy` passes over them. Null if there are no others
    u64 *bytes;       // how many there are
    u64 tile;         // its first
    u64 tile_end;
    u64 rows;
    u64 chunk;        // its first in the launch that copies
    u32 dictionary;   // the page with the entries; all bits: none
    u32 large;        // offsets of 8 bytes
    u32 utf8;
    u32 decimals;     // big-endian numbers of any length instead; `Column` says what they become
};
static_assert(sizeof(Strings) == 80);  // `STRINGS_ENTRY` there

struct StringJob {
    Job job;
    Source *sources;          // of pages
    const Strings *strings;   // of columns
    u64 *bytes;               // of tiles
    const u64 *before;        // the bytes of tiles before each
    u64 column_count;
    u64 chunks;
};
static_assert(sizeof(StringJob) == 168);  // `Job`, and six numbers that are written there

static __device__ bool is_text(const Column *column) { return column->convert == TEXT; }

static __device__ bool is_part(u32 byte) { return (byte & 0xc0) == 0x80; }

// Whether the byte at `at` of a value, which is not ASCII, cannot be there in UTF-8 (RFC 3629): a first byte that its others do not
// follow, or another one that no first byte is in front of.
static __device__ bool is_wrong(const u8 *value, u64 len, u64 at) {
    u32 byte = value[at];
    if (byte < 0xc0) {
        // The first byte says how many there are with it.
#pragma unroll 1
        for (u32 back = 1; back <= 3 && back <= at; back++) {
            u32 before = value[at - back];
            if (!is_part(before)) return before < (back == 1 ? 0xc0u : back == 2 ? 0xe0u : 0xf0u);
        }
        return true;
    }
    if (byte < 0xc2 || byte > 0xf4) return true;
    u32 others = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    if (len - at <= others) return true;
    u32 next = value[at + 1];
    // No more bytes than are needed, no surrogates, nothing above U+10FFFF.
    if (byte == 0xe0 && next < 0xa0) return true;
    if (byte == 0xed && next > 0x9f) return true;
    if (byte == 0xf0 && next < 0x90) return true;
    if (byte == 0xf4 && next > 0x8f) return true;
#pragma unroll 1
    for (u32 i = 1; i <= others; i++)
        if (!is_part(value[at + i])) return true;
    return false;
}
