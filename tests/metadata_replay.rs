//! The example `metadata_replay`, run small as a user runs it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::{Command, Output};

use serde_json::Value;

const KEYS: [&str; 12] = [
    "trace",
    "policy",
    "capacity",
    "hit_rate",
    "qps",
    "backend_calls",
    "useful",
    "wasted",
    "accesses",
    "latency_us",
    "entry_us",
    "seed",
];

const POLICIES: [&str; 7] = [
    "none",
    "lru",
    "moka",
    "quick_cache",
    "no_prefetch",
    "classic",
    "cost_aware",
];

fn replay(args: &[&str]) -> Output {
    let program = common::example::example("metadata_replay");
    Command::new(program).args(args).output().unwrap()
}

fn objects(args: &[&str]) -> Vec<Value> {
    let output = replay(args);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    text.lines()
        .map(|line| {
            let mut at = 0;
            for key in KEYS {
                at += line[at..]
                    .find(&format!("\"{key}\":"))
                    .unwrap_or_else(|| panic!("{key}: {line}"));
            }
            serde_json::from_str(line).unwrap()
        })
        .collect()
}

fn field<'a>(objects: &'a [Value], trace: &str, policy: &str, key: &str) -> &'a Value {
    let is = |object: &&Value| object["trace"] == trace && object["policy"] == policy;
    &objects.iter().find(is).unwrap()[key]
}

#[test]
fn every_trace_and_policy_has_one_object_and_each_run_the_same_counts() {
    let args = [
        "--json",
        "--entries",
        "4000",
        "--accesses",
        "6000",
        "--seed",
        "3",
    ];
    let (one, two) = (objects(&args), objects(&args));
    assert_eq!(one.len(), 10 * POLICIES.len());
    for (a, b) in one.iter().zip(&two) {
        // moka decides by times of its own what leaves.
        for key in KEYS
            .iter()
            .filter(|key| **key != "qps" && a["policy"] != "moka")
        {
            assert_eq!(a[key], b[key], "{key} {a} {b}");
        }
        let calls = a["backend_calls"].as_u64().unwrap();
        let (rate, qps) = (a["hit_rate"].as_f64().unwrap(), a["qps"].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&rate) && qps > 0.0 && calls > 0, "{a}");
        assert_eq!(
            (a["latency_us"].as_u64(), a["seed"].as_u64()),
            (Some(200), Some(3))
        );
        if a["policy"] == "none" {
            assert_eq!(rate, 0.0);
            // Virtual time alone is 200 µs for each.
            assert!(qps < 5000.0, "{a}");
        }
    }
    for chunk in one.chunks(POLICIES.len()) {
        let policies: Vec<_> = chunk
            .iter()
            .map(|object| object["policy"].as_str().unwrap())
            .collect();
        assert_eq!(policies, POLICIES);
    }
}

#[test]
fn fetching_ahead_is_worth_it_where_it_should_be_and_harmless_where_not() {
    let args = [
        "--json",
        "--entries",
        "20000",
        "--accesses",
        "40000",
        "--traces",
        "image_tree,uniform_random,scan_once",
    ];
    let done = objects(&args);
    let number = |trace, policy, key| field(&done, trace, policy, key).as_f64().unwrap();
    let calls = |trace, policy| number(trace, policy, "backend_calls");
    assert!(calls("image_tree", "cost_aware") * 2.0 <= calls("image_tree", "lru"));
    assert!(
        number("image_tree", "cost_aware", "hit_rate") > number("image_tree", "lru", "hit_rate")
    );
    assert!(number("image_tree", "cost_aware", "useful") > 0.0);
    for adverse in ["uniform_random", "scan_once"] {
        for ours in ["classic", "cost_aware"] {
            let limit = calls(adverse, "no_prefetch") * 1.05;
            assert!(calls(adverse, ours) <= limit, "{adverse} {ours}");
        }
    }
}

#[test]
fn the_table_says_what_is_simulated_and_wrong_options_are_refused() {
    let output = replay(&[
        "--traces",
        "shards",
        "--entries",
        "200",
        "--accesses",
        "500",
        "--policies",
        "lru",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("200 µs for each request") && text.contains("virtual clock"),
        "{text}"
    );
    for wrong in [
        &["--capacity", "0"][..],
        &["--traces", "nothing"],
        &["--policies", "best"],
        &["--entries", "0"],
        &["--no-such-option"],
    ] {
        assert_eq!(replay(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let help = replay(&["--help"]);
    assert!(
        help.status.success()
            && String::from_utf8(help.stdout)
                .unwrap()
                .contains("--latency-us")
    );
}
