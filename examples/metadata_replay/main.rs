//! Replays metadata accesses of training and query jobs against caches of several policies, and prints what each made of them.
//!
//! The backend is simulated: each request takes a fixed latency on a clock that nobody waits for, so a replay of minutes takes
//! seconds and gives the same counts each time. `--help` says what the numbers mean.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod backend;
mod policy;
mod replay;

use std::process::ExitCode;

use args::{Args, Wish};

fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(Wish::Replay(args)) => args,
        Ok(Wish::Help) => {
            print!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("metadata_replay: {error}\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("metadata_replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> feedwater::Result<()> {
    if !args.json {
        println!(
            "backend: {} µs for each request of up to {} names, {} µs for each name of a list or batch, on a virtual clock; seed {}",
            args.latency_us,
            backend::PAGE,
            args.entry_us,
            args.seed,
        );
    }
    for kind in &args.traces {
        let trace = replay::trace(args, *kind);
        let capacity = replay::capacity(args, &trace);
        if !args.json {
            replay::print_head(&trace, capacity);
        }
        for policy in &args.policies {
            let done = replay::run(args, &trace, *policy, capacity)?;
            if args.json {
                println!("{}", done.json(args));
            } else {
                println!("{}", done.row());
            }
        }
    }
    Ok(())
}
