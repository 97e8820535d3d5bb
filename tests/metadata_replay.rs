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
        "2000",
        "--accesses",
        "2500",
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
fn fetching_ahead_is_worth_it_where_what_is_used_at_once_fits() {
    let done = objects(&[
        "--json",
        "--traces",
        "image_tree",
        "--policies",
        "lru,cost_aware",
    ]);
    let number = |policy, key| field(&done, "image_tree", policy, key).as_f64().unwrap();
    assert!(number("lru", "hit_rate") <= 0.70);
    assert!(number("cost_aware", "hit_rate") >= 0.89);
    assert!(number("cost_aware", "backend_calls") * 2.0 <= number("lru", "backend_calls"));
    let (useful, wasted) = (
        number("cost_aware", "useful"),
        number("cost_aware", "wasted"),
    );
    assert!(
        useful > 0.0 && useful / (useful + wasted) >= 0.09,
        "{useful} {wasted}"
    );
}

#[test]
fn fetching_ahead_is_harmless_where_nothing_is_to_be_foreseen() {
    for capacity in ["3", "10", "40"] {
        let done = objects(&[
            "--json",
            "--entries",
            "10000",
            "--accesses",
            "15000",
            "--capacity",
            capacity,
            "--traces",
            "uniform_random,scan_once",
            "--policies",
            "no_prefetch,classic,cost_aware",
        ]);
        for trace in ["uniform_random", "scan_once"] {
            let calls = |policy| {
                field(&done, trace, policy, "backend_calls")
                    .as_f64()
                    .unwrap()
            };
            let limit = calls("no_prefetch") * 1.05;
            for ours in ["classic", "cost_aware"] {
                let calls = calls(ours);
                assert!(
                    calls <= limit,
                    "{trace} {ours} {capacity} %: {calls} of {limit}"
                );
            }
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
    // A name that there is not is told with those that there are.
    for (option, what, names) in [
        ("--traces", "trace", "image_tree, shards, flat_prefix,"),
        ("--policies", "policy", "none, lru, moka,"),
    ] {
        let text = String::from_utf8(replay(&[option, "lru,nope"]).stderr).unwrap();
        let name = if option == "--traces" { "lru" } else { "nope" };
        let said = format!("metadata_replay: there is no {what} {name:?}, but {names}");
        assert!(text.starts_with(&said), "{text}");
    }
    let help = replay(&["--help"]);
    assert!(
        help.status.success()
            && String::from_utf8(help.stdout)
                .unwrap()
                .contains("--latency-us")
    );
}
