//! Whether there is CUDA: every "no" has its reason, and none is a panic.

use std::path::Path;
use std::process::Command;

use feedwater::cuda::{self, Device, NoCuda};
use feedwater::{ErrorKind, Refusal};
use software_cuda_preload::Device as On;

use crate::common::skip::require;
use crate::support::*;

/// Runs an ignored test in a process of its own, with another environment.
fn child(test: &str, environment: &[(&str, &Path)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    eprint!("{err}");
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{test}: {out}{err}"
    );
}

#[test]
fn the_device_is_described() {
    let session = session("eager");
    let found = cuda::available().unwrap();
    let device = &found.devices[0];
    assert_eq!((device.ordinal, &device.refused), (0, &None));
    assert!(
        found.driver >= (12, 0) && device.capability >= (7, 5),
        "{found:?}"
    );
    assert!(device.memory > 0 && !device.name.is_empty());
    if session.device() == On::Software {
        assert_eq!((found.driver, device.capability), ((12, 2), (7, 5)));
        let text = "device 0: software CUDA device (sm_75), compute capability 7.5, 8.0 GiB";
        assert_eq!(device.to_string(), text);
        assert_eq!(device.pci.as_deref(), Some("0000:01:00.0"));
        // Asking makes no context.
        assert_eq!(session.counts().contexts, 0);
    }
}

#[test]
fn no_device_an_old_one_and_another_number() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    let count = cuda::available().unwrap().devices.len() as u32;
    let why = NoCuda::NoSuchDevice { ordinal: 7, count };
    assert_eq!(refusal(7), why.to_string());

    session.set("PROFILE", "sm_70");
    let why = NoCuda::OldDevice {
        ordinal: 0,
        found: (7, 0),
    };
    assert_eq!(cuda::available().unwrap_err(), why);
    assert_eq!(refusal(0), why.to_string());
    assert_eq!(
        why.to_string(),
        "CUDA device 0 has compute capability 7.0, and 7.5 is needed"
    );

    session.set("DEVICES", "0");
    let why = NoCuda::NoDevice {
        visible_devices: None,
    };
    assert_eq!(cuda::available().unwrap_err(), why);
    assert_eq!(refusal(0), "there is no CUDA device");
}

/// Why a device cannot be opened, as the error's refusal has it.
fn refusal(ordinal: u32) -> String {
    let error = Device::open(ordinal).unwrap_err();
    match error.kind() {
        ErrorKind::Unavailable {
            engine: "cuda",
            why: Refusal::NotOnThisSystem { what },
        } => what.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hidden_devices_are_said_to_be_hidden() {
    child(
        "probe::hidden_alone",
        &[("CUDA_VISIBLE_DEVICES", Path::new(""))],
    );
}

#[test]
#[ignore = "run by `hidden_devices_are_said_to_be_hidden`, in an environment of its own"]
fn hidden_alone() {
    let _session = session("eager");
    let why = cuda::available().unwrap_err();
    assert_eq!(
        why,
        NoCuda::NoDevice {
            visible_devices: Some(String::new())
        }
    );
    assert!(
        why.to_string()
            .ends_with("CUDA_VISIBLE_DEVICES is set to nothing, which hides all")
    );
}

#[test]
fn no_driver() {
    child("probe::no_driver_alone", &[]);
}

#[test]
#[ignore = "run by `no_driver`, in a process without the software device"]
fn no_driver_alone() {
    match cuda::available() {
        Err(NoCuda::NoDriver { why }) => assert!(why.contains("libcuda.so.1"), "{why}"),
        found => {
            require(
                "no-cuda-driver",
                Err::<(), _>(format!("there is one: {found:?}")),
            );
            return;
        }
    }
    assert!(refusal(0).starts_with("there is no CUDA driver: "));
    assert_eq!(
        cuda::available().unwrap_err(),
        cuda::available().unwrap_err()
    );
}

/// A library that has the driver's name and this C code, or whatever else is in the file.
fn with_library(test: &str, code: Option<&str>) {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libcuda.so.1");
    match code {
        None => std::fs::write(&library, "no library").unwrap(),
        Some(code) => {
            let source = dir.path().join("driver.c");
            std::fs::write(&source, code).unwrap();
            // Whatever links Rust programs here.
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
                .args([&library, &source])
                .output();
            let built = built.map_err(|error| error.to_string()).and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() {
                    Ok(())
                } else {
                    Err(said)
                }
            });
            if require("cc", built).is_none() {
                return;
            }
        }
    }
    child(test, &[("LD_LIBRARY_PATH", dir.path())]);
}

#[test]
fn something_else_in_the_place_of_the_driver() {
    with_library("probe::damaged_alone", None);
}

#[test]
#[ignore = "run by `something_else_in_the_place_of_the_driver`"]
fn damaged_alone() {
    let why = cuda::available().unwrap_err();
    assert!(
        matches!(&why, NoCuda::NoDriver { why } if why.contains("libcuda.so.1")),
        "{why:?}"
    );
}

#[test]
fn a_driver_that_is_too_old() {
    let code = "int cuDriverGetVersion(int *version) { *version = 11080; return 0; }";
    with_library("probe::old_alone", Some(code));
}

#[test]
#[ignore = "run by `a_driver_that_is_too_old`"]
fn old_alone() {
    let why = cuda::available().unwrap_err();
    assert_eq!(why, NoCuda::OldDriver { found: (11, 8) });
    let text = "the CUDA driver is too old: it is for CUDA 11.8, and 12.0 is needed";
    assert_eq!(why.to_string(), text);
    assert_eq!(refusal(0), text);
}

#[test]
fn a_driver_without_a_function() {
    let code = "int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
                int cuInit(unsigned flags) { return 0; }";
    with_library("probe::missing_alone", Some(code));
}

#[test]
#[ignore = "run by `a_driver_without_a_function`"]
fn missing_alone() {
    let why = cuda::available().unwrap_err();
    assert_eq!(
        why,
        NoCuda::MissingFunction {
            function: "cuGetErrorName"
        }
    );
}

/// What is installed for linking programs, where there is no driver.
#[test]
fn a_library_for_linking_in_the_place_of_the_driver() {
    let code = "int cuDriverGetVersion(int *version) { return 34; }
                int cuInit(unsigned flags) { return 34; }";
    with_library("probe::stub_alone", Some(code));
}

#[test]
#[ignore = "run by `a_library_for_linking_in_the_place_of_the_driver`"]
fn stub_alone() {
    let why = cuda::available().unwrap_err();
    assert_eq!(
        why.to_string(),
        "cuDriverGetVersion failed: a library for linking is in the place of the driver (34)"
    );
    assert_eq!(refusal(0), why.to_string());
}

/// A call fails, each in its turn.
#[test]
fn whatever_call_fails_is_named() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    let before = session.counts().calls;
    cuda::available().unwrap();
    let calls = session.counts().calls - before;
    assert!(calls > 5);
    for index in 0..calls {
        session.fail_call(index, 999);
        match cuda::available() {
            Err(NoCuda::Failed {
                call,
                code: 999,
                name,
            }) => {
                assert!(call.starts_with("cu"), "{call}");
                assert_eq!(name, "CUDA_ERROR_UNKNOWN");
            }
            // The address on the bus may be unknown.
            Ok(found) => assert_eq!(found.devices[0].pci, None, "call {index}"),
            Err(why) => panic!("call {index}: {why:?}"),
        }
        session.fail_nothing();
    }
    // A code that this crate has never heard of.
    session.fail_call(0, 98_765);
    let why = cuda::available().unwrap_err();
    assert!(
        why.to_string()
            .ends_with("failed: an unknown error (98765)"),
        "{why}"
    );
}
