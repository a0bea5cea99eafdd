//! The operator: see [`sidekey::operator`].

fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
