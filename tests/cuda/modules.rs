//! Every family of kernels that ships is taken by the driver.

use feedwater::ErrorKind;
use feedwater::cuda::{Device, FAMILIES};

use crate::support::*;

#[test]
fn each_is_loaded_once_and_has_the_kernel_of_its_name() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for &family in FAMILIES {
            let module = gpu.module(family).unwrap();
            println!(
                "{}: {:?} {}",
                module.name(),
                module.load_time(),
                module.log()
            );
            assert!(!module.function(family.name()).unwrap().is_null());
            let again = gpu.module(family).unwrap();
            assert!(std::sync::Arc::ptr_eq(&module, &again));
            let missing = module.function("no such kernel").unwrap_err();
            assert!(
                matches!(missing.kind(), ErrorKind::NotFound { .. }),
                "{missing}"
            );
        }
    }
    nothing_left(&session);
}
