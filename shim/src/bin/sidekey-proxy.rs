//! The socket proxy: see [`sidekey_shim::proxy`].

use std::process::ExitCode;

fn main() -> ExitCode {
    sidekey_shim::proxy::run()
}
