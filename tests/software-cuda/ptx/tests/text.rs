//! PTX written by hand: what NVRTC did not happen to write for our kernels, and what is refused, with its line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use software_cuda_ptx::{
    Checks, FindingKind, Grid, HostMemory, LaunchError, Module, Options, ParseError,
    ParseErrorKind, Report, Schedule, launch,
};

/// A module with one kernel that has the address of 32 words as its parameter, in `%out` plus 4 for each thread, and the thread in `%t`.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
         .reg .b64 %out, %w<8>; .reg .b32 %t, %r<16>; .reg .b16 %h<8>; .reg .pred %p<8>; .reg .f32 %f<4>;\n\
         ld.param.u64 %out, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %w0, %t, 4; add.s64 %out, %out, %w0;\n\
         {body}\nret;\n}}\n"
    )
}

fn run_with(text: &str, options: &Options) -> (Report, Vec<u32>) {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut memory = HostMemory::new();
    let out = memory.allocate(&[0; 128]);
    let globals: Vec<u64> = module
        .globals
        .iter()
        .map(|variable| memory.allocate(&variable.bytes))
        .collect();
    let report = launch(
        &module,
        "k",
        Grid::line(1, 32),
        &out.to_le_bytes(),
        &globals,
        &mut memory,
        options,
    )
    .unwrap();
    let words = memory
        .bytes(out)
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect();
    (report, words)
}

/// What the body writes for each thread, the same in every schedule.
fn run(body: &str) -> Vec<u32> {
    let results = [
        Schedule::InOrder,
        Schedule::Reversed,
        Schedule::Shuffled(5),
        Schedule::Apart,
    ]
    .map(|schedule| {
        let (report, words) = run_with(
            &kernel(body),
            &Options {
                schedule,
                checks: Checks::ALL,
                ..Options::default()
            },
        );
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        words
    });
    assert!(results.iter().all(|result| *result == results[0]));
    results[0].clone()
}

fn of_threads(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(f).collect()
}

#[test]
fn tables_of_branches() {
    let body = "and.b32 %r1, %t, 3;\n\
        $table: .branchtargets $A, $B, $C, $B;\n\
        brx.idx %r1, $table;\n\
        $A: mov.u32 %r2, 10; bra.uni $end;\n\
        $B: mov.u32 %r2, 20; bra $end;\n\
        $C: mov.u32 %r2, 30;\n\
        $end: st.global.u32 [%out], %r2;";
    assert_eq!(run(body), of_threads(|t| [10, 20, 30, 20][t as usize & 3]));
}

#[test]
fn scopes_have_names_and_labels_of_their_own() {
    let body = "mov.u32 %r1, 0;\n\
        { .reg .b32 x; .reg .pred q; mov.u32 x, 5; $L: add.u32 %r1, %r1, x; setp.lt.u32 q, %r1, 20; @q bra $L; }\n\
        { .reg .b32 x; mov.u32 x, %t; $L: add.u32 %r1, %r1, x; }\n\
        st.global.u32 [%out], %r1;";
    assert_eq!(run(body), of_threads(|t| 20 + t));
}

#[test]
fn halves_and_wholes() {
    let body = "mov.b32 {%h1, %h2}, %t; mov.b32 %r1, {%h2, %h1}; mov.b64 %w1, {%r1, %t}; mov.b64 {_, %r2}, %w1;\n\
        add.u32 %r3, %r1, %r2; st.global.u32 [%out], %r3;";
    assert_eq!(run(body), of_threads(|t| (t << 16) + t));
}

#[test]
fn predicates_combined() {
    let body = "setp.lt.u32 %p1, %t, 20; setp.ge.and.u32 %p2|%p3, %t, 10, %p1; not.pred %p4, %p2; selp.u32 %r1, 1, 0, %p2;\n\
        selp.u32 %r2, 2, 0, %p3; @%p4 add.u32 %r2, %r2, 4; @!%p4 add.u32 %r2, %r2, 8; add.u32 %r1, %r1, %r2; st.global.u32 [%out], %r1;";
    // The second predicate is the opposite of the comparison, also combined with the third operand.
    assert_eq!(
        run(body),
        of_threads(|t| u32::from((10..20).contains(&t))
            + 2 * u32::from(t < 10)
            + if (10..20).contains(&t) { 8 } else { 4 })
    );
}

#[test]
fn carries_and_bits() {
    let body = "mov.u32 %r1, 0xffffffff; add.cc.u32 %r2, %r1, %t; addc.u32 %r3, 0, 0; lop3.b32 %r4, %t, %r3, 5, 0x96;\n\
        bfe.u32 %r5, %r4, 1, 3; bfi.b32 %r6, %r5, %r4, 8, 4; prmt.b32 %r7, %r6, 0, 0x4140; st.global.u32 [%out], %r7;";
    assert_eq!(
        run(body),
        of_threads(|t| {
            let x = t ^ u32::from(t > 0) ^ 5;
            let y = x | (x >> 1 & 7) << 8;
            (y & 0xff) | (y & 0xff00) << 8
        })
    );
}

#[test]
fn vectors_and_addresses() {
    let body = "mov.u32 %r1, 7; setp.eq.u32 %p1, %t, 0;\n\
        @%p1 st.global.v4.u32 [%out+16], {%t, %r1, 3, %r1};\n\
        @%p1 ld.global.v2.u32 {_, %r2}, [%out+24]; @%p1 st.global.u32 [%out], %r2; @%p1 st.global.u8 [%out+8], -1;";
    let mut wanted = vec![0; 32];
    wanted[..8].copy_from_slice(&[7, 0, 0xff, 0, 0, 7, 3, 7]);
    assert_eq!(run(body), wanted);
}

#[test]
fn rounding_is_that_of_the_instruction() {
    let body = "cvt.rn.f32.u32 %f1, %t; div.rn.f32 %f2, %f1, 0f40000000; cvt.rni.s32.f32 %r1, %f2; cvt.rpi.s32.f32 %r2, %f2; cvt.rzi.u32.f32 %r3, %f2;\n\
        shl.b32 %r1, %r1, 16; shl.b32 %r2, %r2, 8; or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; st.global.u32 [%out], %r1;";
    let even = |t: u32| (t as f32 / 2.0).round_ties_even() as u32;
    assert_eq!(
        run(body),
        of_threads(|t| (even(t) << 16) | (t.div_ceil(2) << 8) | (t / 2))
    );
}

#[test]
fn variables_in_all_kinds_of_memory() {
    let text = kernel(
        ".local .align 4 .b8 l[8]; .shared .align 4 .b8 s[128]; mov.u64 %w1, l; cvta.local.u64 %w1, %w1; st.u32 [%w1+4], %t; ld.local.u32 %r1, [l+4];\n\
        shl.b32 %r2, %t, 2; mov.u32 %r3, s; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r1; cvt.u64.u32 %w2, %r3; cvta.shared.u64 %w2, %w2; ld.u32 %r4, [%w2];\n\
        isspacep.shared %p1, %w2; isspacep.local %p2, %w2; @%p1 add.u32 %r4, %r4, 100; @%p2 add.u32 %r4, %r4, 1000;\n\
        mov.u64 %w3, c; cvt.u64.u32 %w4, %r2; add.u64 %w3, %w3, %w4; ld.const.u32 %r5, [c+8]; add.u32 %r4, %r4, %r5; st.global.u32 [%out], %r4;",
    )
    .replace(".visible", ".const .align 4 .u32 c[4] = {1, 2, 30};\n.visible");
    let (report, words) = run_with(
        &text,
        &Options {
            checks: Checks::ALL,
            ..Options::default()
        },
    );
    assert!(report.findings.is_empty(), "{}", report.findings[0]);
    assert_eq!(words, of_threads(|t| t + 130));
}

#[test]
fn warp_barriers_may_be_in_two_places() {
    let body = ".shared .align 4 .b8 s[128]; shl.b32 %r1, %t, 2; mov.u32 %r2, s; add.u32 %r1, %r1, %r2; xor.b32 %r3, %r1, 4;\n\
        and.b32 %r4, %t, 1; setp.eq.u32 %p1, %r4, 0; st.shared.u32 [%r1], %t;\n\
        @%p1 bra $even; bar.warp.sync 0xffffffff; bra $on; $even: bar.warp.sync -1; $on: ld.shared.u32 %r5, [%r3]; st.global.u32 [%out], %r5;";
    assert_eq!(run(body), of_threads(|t| t ^ 1));
}

#[test]
fn lanes_of_two_calls_shuffle_together() {
    let text = kernel(
        "setp.lt.u32 %p1, %t, 16; @%p1 bra $low; mov.u32 %r1, 1; bra $go; $low: mov.u32 %r1, 2; $go:\n\
        { .param .b32 a; st.param.b32 [a+0], %r1; .param .b32 r; call.uni (r), f, (a); ld.param.b32 %r2, [r+0]; } st.global.u32 [%out], %r2;",
    )
    .replace(
        ".visible",
        ".func (.param .b32 r) f(.param .b32 a) { .reg .b32 %x<3>; ld.param.b32 %x0, [a]; shfl.sync.idx.b32 %x1, %x0, 0, 31, -1; shfl.sync.idx.b32 %x2, %x0, 31, 31, -1;\n\
        shl.b32 %x1, %x1, 8; or.b32 %x1, %x1, %x2; st.param.b32 [r+0], %x1; ret; }\n.visible",
    );
    for schedule in [Schedule::InOrder, Schedule::Shuffled(1), Schedule::Apart] {
        let (report, words) = run_with(
            &text,
            &Options {
                schedule,
                checks: Checks::ALL,
                ..Options::default()
            },
        );
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        assert_eq!(words, of_threads(|_| 0x201), "{schedule:?}");
    }
}

#[test]
fn a_lane_may_wait_for_another_of_its_warp() {
    // A lock: without switching between groups, the one that waits would run for ever.
    let text = kernel(
        "$try: atom.global.cas.b32 %r1, [lock], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra $try;\n\
        ld.volatile.global.u32 %r2, [sum]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [sum], %r2; st.volatile.global.u32 [%out], %r2; membar.gl;\n\
        atom.global.exch.b32 %r3, [lock], 0;",
    )
    .replace(".visible", ".global .u32 lock; .global .u32 sum;\n.visible");
    for schedule in [
        Schedule::InOrder,
        Schedule::Reversed,
        Schedule::Shuffled(1),
        Schedule::Apart,
    ] {
        let options = Options {
            schedule,
            checks: Checks {
                races: true,
                unwritten: false,
            },
            most_steps: 20_000_000,
            traffic: false,
        };
        let (report, mut words) = run_with(&text, &options);
        assert!(
            report.findings.is_empty(),
            "{schedule:?}: {}",
            report.findings[0]
        );
        words.sort_unstable();
        assert_eq!(words, of_threads(|t| t + 1), "{schedule:?}");
    }
}

#[test]
fn calls_that_never_end() {
    let text =
        kernel("call.uni f;").replace(".visible", ".func f() { call.uni f; ret; }\n.visible");
    let (report, _) = run_with(&text, &Options::default());
    assert_eq!(report.fault().unwrap().kind, FindingKind::Trap);
}

#[test]
fn what_is_refused() {
    use ParseErrorKind::*;
    let refused = |body: &str| Module::parse(&kernel(body)).unwrap_err();
    // The body begins in line 7.
    let unknown = |instruction: &str, modifier: &str| ParseError {
        line: 7,
        kind: UnknownModifier {
            instruction: instruction.into(),
            modifier: modifier.into(),
        },
    };
    assert_eq!(
        refused("frob.u32 %r1, %r2;"),
        ParseError {
            line: 7,
            kind: UnknownInstruction("frob.u32".into())
        }
    );
    assert_eq!(
        refused("div.rn.approx.f32 %f1, %f2, %f3;"),
        unknown("div.rn.approx.f32", "approx")
    );
    assert_eq!(
        refused("add.rz.f32 %f1, %f2, %f3;"),
        unknown("add.rz.f32", "rz")
    );
    assert_eq!(refused("mov.u32.x %r1, 1;"), unknown("mov.u32.x", "x"));
    assert_eq!(
        refused("\n\nmov.u32 %r99, 1;"),
        ParseError {
            line: 9,
            kind: UnknownName("%r99".into())
        }
    );
    assert_eq!(
        refused("bra $nowhere;"),
        ParseError {
            line: 7,
            kind: UnknownLabel("$nowhere".into())
        }
    );
    assert_eq!(
        refused("$a: $a: mov.u32 %r1, 1;"),
        ParseError {
            line: 7,
            kind: Repeated("$a".into())
        }
    );
    assert_eq!(
        refused("mov.u32 %r1, 0xfffffffffffffffff;"),
        ParseError {
            line: 7,
            kind: BadNumber("0xfffffffffffffffff".into())
        }
    );
    assert_eq!(
        refused(".reg .b32 %x<100000>;"),
        ParseError {
            line: 7,
            kind: TooLarge {
                what: "registers of a function",
                limit: 65_536
            }
        }
    );
    assert_eq!(
        refused("call.uni g;"),
        ParseError {
            line: 7,
            kind: UnknownName("g".into())
        }
    );
    assert!(matches!(
        refused("add.u32 %r1, %r2;").kind,
        BadOperand { .. }
    ));
    assert!(matches!(
        refused("ld.global.u32 %r1, %w1;").kind,
        BadOperand {
            wanted: "an address",
            ..
        }
    ));
    assert!(matches!(refused("bar.sync 1, 64;").kind, BadOperand { .. }));
    assert!(matches!(
        refused("shfl.idx.b32 %r1, %r2, 0, 31, -1;").kind,
        MissingModifier { wanted: "sync", .. }
    ));
    assert!(matches!(
        refused("mov.u32 %r1, \"a\";").kind,
        Unexpected { .. }
    ));
    assert!(matches!(
        refused(".tex .u32 %r1;").kind,
        UnknownDirective(_)
    ));
    assert_eq!(
        Module::parse("").unwrap_err(),
        ParseError {
            line: 1,
            kind: NoVersion
        }
    );
    assert_eq!(Module::parse("int main() {}").unwrap_err().kind, NoVersion);
    let unended = kernel("").trim_end().trim_end_matches('}').to_owned();
    assert!(matches!(
        Module::parse(&unended).unwrap_err().kind,
        Unexpected { .. }
    ));
}

#[test]
fn launches_that_do_not_fit() {
    let module = Module::parse(&kernel("").replace("p) {", "p) .maxntid 64, 1, 1 {")).unwrap();
    let refused = |name: &str, grid: Grid, parameters: &[u8]| {
        launch(
            &module,
            name,
            grid,
            parameters,
            &[],
            &mut HostMemory::new(),
            &Options::default(),
        )
        .unwrap_err()
    };
    assert_eq!(
        refused("other", Grid::line(1, 1), &[0; 8]),
        LaunchError::NoKernel("other".into())
    );
    assert_eq!(
        refused("k", Grid::line(1, 65), &[0; 8]),
        LaunchError::Threads([65, 1, 1])
    );
    assert_eq!(
        refused("k", Grid::line(1, 0), &[0; 8]),
        LaunchError::Threads([0, 1, 1])
    );
    assert_eq!(
        refused("k", Grid::line(0, 1), &[0; 8]),
        LaunchError::Blocks([0, 1, 1])
    );
    assert_eq!(
        refused("k", Grid::line(1, 1), &[0; 4]),
        LaunchError::Parameters {
            given: 4,
            wanted: 8
        }
    );
}
