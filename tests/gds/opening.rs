//! Whether cuFile is used, and what is said where it is not: each in a process of its own, as a process opens it once.

use std::time::{Duration, Instant};

use feedwater::ErrorKind;
use feedwater::cuda::Device;
use feedwater::gds::{GdsMode, GdsState};
use software_cuda_preload::Session;
use software_cuda_preload::cufile::Cufile;

use crate::common::alone::alone;
use crate::support::*;

/// Declares a test that runs alone.
macro_rules! alone {
    ($($name:ident $body:block)*) => {$(
        #[test]
        fn $name() {
            alone(concat!("opening::bodies::", stringify!($name)));
        }
    )*
        /// What the processes do.
        mod bodies {
            use super::*;
            $(
                #[test]
                #[ignore = "run by another one, in a process of its own"]
                fn $name() $body
            )*
        }
    };
}

/// Reads the other way, for the reason given; required, it is an error with the reason.
fn is_off(setting: &Setting, why: &str, required_too: bool) {
    let reader = setting.open(setting.options(GdsMode::Auto)).unwrap();
    setting.check(&reader, &[0..100_000, 5..6]);
    let report = reader.report();
    assert!(
        matches!(&report.state, GdsState::Off { why: said } if said.contains(why)),
        "{report}"
    );
    assert_eq!((report.reads, report.elsewhere), (0, 2));
    assert!(report.why.as_deref().unwrap().contains(why), "{report}");
    // Its blocks are ordinary ones.
    assert_eq!(reader.reusable(5000).unwrap().place(), setting.gpu.place());
    if required_too {
        let error = setting.open(setting.options(GdsMode::Require)).unwrap_err();
        let ErrorKind::Unavailable {
            engine: "gds",
            why: said,
        } = error.kind()
        else {
            panic!("{error}")
        };
        assert!(said.to_string().contains(why), "{error}");
        assert!(error.name().unwrap().ends_with("/file"), "{error}");
    }
}

/// Whether the process has loaded a library of this name.
fn is_loaded(name: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .contains(name)
}

alone! {
    without_the_library_reads_go_the_other_way {
        let session = Session::begin();
        {
            let setting = Setting::new(100_000);
            is_off(&setting, "libcufile.so.0", true);
        }
        // Threads end by themselves.
        let deadline = Instant::now() + SOON;
        while let Some(left) = session.counts().leaks() {
            assert!(Instant::now() < deadline, "left: {left:?}");
            std::thread::yield_now();
        }
    }

    a_kernel_without_modules_is_none_for_cufile {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        let setting = Setting::new(100_000);
        let missing = setting.path.with_file_name("none");
        let options = setting.options(GdsMode::Auto).kernel_modules(missing);
        let report = setting.open(options).unwrap().report();
        assert!(report.to_string().contains("without which cuFile may hang"), "{report}");
        is_off(&setting, "without which cuFile may hang", true);
        assert_eq!(cufile.counts().opened, 0);
    }

    switched_off_the_library_is_not_looked_for {
        let _session = Session::begin();
        let setting = Setting::new(100_000);
        let reader = setting.open(setting.options(GdsMode::Off)).unwrap();
        setting.check(&reader, &[0..100_000]);
        let off = GdsState::Off { why: "switched off".into() };
        assert_eq!(reader.report().state, off);
        assert!(!is_loaded("cufile"));
    }

    the_environment_says_whether_it_is_used {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        let setting = Setting::new(100_000);
        let with = |value: &str| {
            // SAFETY: the only thread that reads or writes the environment now.
            #[allow(unsafe_code)]
            unsafe { std::env::set_var("FEEDWATER_GDS", value) };
            let mut options = setting.options(GdsMode::Auto);
            options.mode = None;
            setting.open(options)
        };
        let reader = with("off").unwrap();
        assert_eq!(reader.report().state.to_string(), "off: switched off");
        assert_eq!(cufile.counts().opened, 0);
        let error = with("yes").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
        assert_eq!(with("auto").unwrap().report().state, GdsState::PeerToPeer);
        cufile.fail("cuFileHandleRegister", 0, 5008);
        let error = with("require").unwrap_err();
        assert!(error.to_string().contains("not supported for this file (5008)"), "{error}");
        // What the caller says comes first.
        assert_eq!(setting.open(setting.options(GdsMode::Auto)).unwrap().report().state, GdsState::PeerToPeer);
    }

    a_file_that_is_refused_goes_the_other_way_and_the_next_one_does_not {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        let setting = Setting::new(100_000);
        cufile.fail("cuFileHandleRegister", 0, 5018);
        is_off(&setting, "unsupported file type (5018)", false);
        setting.check(&setting.required(), &[0..100_000]);
        until(&cufile, |counts| counts.leaks().is_none());
    }

    peer_to_peer_alone_is_allowed_if_we_open_it {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        let setting = Setting::new(100_000);
        let reader = setting.open(setting.options(GdsMode::Auto)).unwrap();
        assert_eq!(reader.report().state, GdsState::PeerToPeer);
        assert!(!cufile.allows_compatibility());
        assert!(reader.report().to_string().starts_with("cuFile (peer-to-peer; drive: "), "{}", reader.report());
    }

    a_machine_with_the_compatibility_mode_alone {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        cufile.set("MODE", "compatibility");
        let setting = Setting::new(100_000);
        is_off(&setting, "peer-to-peer reads are not possible here: cuFileDriverOpen failed", false);
        // As it was for whoever else opens it.
        assert!(cufile.allows_compatibility());
        assert_eq!(cufile.counts().opened, 0);
        // Whoever insists gets it.
        let reader = setting.open(setting.options(GdsMode::Require)).unwrap();
        setting.check(&reader, &[0..100_000]);
        assert_eq!((reader.report().state, reader.report().reads), (GdsState::Compatibility, 1));
        is_off(&setting, "compatibility mode, through the host", false);
    }

    an_older_release_does_not_tell {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        cufile.set("PARAMETERS", "off");
        cufile.set("BATCH", "0");
        let setting = Setting::new(100_000);
        let reader = setting.open(setting.options(GdsMode::Auto)).unwrap();
        assert_eq!(reader.report().state, GdsState::Unknown);
        // Without batches.
        setting.check(&reader, &[0..9, 10..20, 30..31, 50..60, 0..100_000]);
        assert_eq!((cufile.counts().reads, cufile.counts().submits, reader.report().reads), (5, 0, 5));
    }

    settings_of_whoever_opened_it_before_are_left_alone {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        let setting = Setting::new(100_000);
        cufile.open_driver();
        let reader = setting.open(setting.options(GdsMode::Auto)).unwrap();
        assert!(cufile.allows_compatibility());
        assert_eq!(cufile.counts().settings, 0, "it was not even tried");
        assert_eq!((reader.report().state, cufile.counts().opened), (GdsState::Unknown, 2));
        setting.check(&reader, &[0..100_000]);
    }

    a_driver_that_refuses {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        cufile.set("OPEN", "refused");
        let setting = Setting::new(100_000);
        is_off(&setting, "driver not initialized (5001)", true);
        // What failed is not tried again.
        cufile.set("OPEN", "works");
        is_off(&setting, "driver not initialized (5001)", true);
        assert_eq!(cufile.counts().opened, 0);
    }

    a_driver_without_properties_is_closed_again {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        cufile.fail("cuFileDriverGetProperties", 0, 5002);
        let setting = Setting::new(100_000);
        is_off(&setting, "invalid driver properties (5002)", false);
        assert_eq!(cufile.counts().opened, 0);
        assert!(cufile.allows_compatibility());
    }

    opening_that_hangs_is_left_alone_for_good {
        let session = Session::begin();
        let cufile = Cufile::begin(&session);
        cufile.set("OPEN", "hangs");
        let setting = Setting::new(100_000);
        let begun = Instant::now();
        let reader = setting.open(setting.options(GdsMode::Auto).open_limit(Duration::from_millis(50))).unwrap();
        assert!(begun.elapsed() < SOON);
        setting.check(&reader, &[0..100_000]);
        let report = reader.report();
        assert!(report.to_string().contains("opening cuFile took more than 50ms"), "{report}");
        // Not tried again, whatever the limit; also not by those who insist.
        is_off(&setting, "took more than 50ms", true);
        // What comes after all is closed.
        cufile.set("OPEN", "works");
        until(&cufile, |counts| counts.closed == 1);
        assert_eq!(cufile.counts().opened, 0);
        is_off(&setting, "took more than 50ms", true);
    }

    without_cuda_nothing_is_opened {
        let mut session = Session::begin();
        session.set("DEVICES", "0");
        let error = Device::open(0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable { engine: "cuda", .. }), "{error}");
        assert!(!is_loaded("cufile"));
    }
}
