use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn a_provider_whose_tests_take_more_than_a_minute_of_a_core_is_named_with_its_dearest_step() {
    let outcome = |step: &str, core_seconds| Outcome {
        step: step.to_owned(),
        core_seconds,
        ..Outcome::default()
    };
    let mut outcomes = vec![
        outcome("x-aws lib", 20.0),
        outcome("x-aws promises", 39.0),
        outcome("x-aws-more promises", 900.0),
        outcome("it planes::aws", 900.0),
    ];
    assert_eq!(too_dear("x-aws", &outcomes), None);
    outcomes.push(outcome("x-aws conformance", 2.0));
    assert_eq!(too_dear("x-aws", &outcomes), Some(("x-aws promises".to_owned(), 61.0)));
    assert_eq!(too_dear("x-vault", &outcomes), None);
}

/// An executable that is late on a starved machine at first, and whose single test, whenever it
/// runs again, does what `again` says.
fn starved(directory: &Path, test: &str, place: &str, again: &str) -> Executable {
    let script = format!(
        "#!/bin/sh\n\
         case $* in *--list*) echo '{test}: test'; exit;; esac\n\
         if test -e again; then echo \"$*\" > again; {again}; exit; fi\n\
         touch again; echo 5000 > \"$SIDEKEY_WITNESS\"\n\
         printf \"thread '{test}' panicked at {place}:1:1:\\nwaited 1 s in vain\\n\\n\"\n\
         printf 'failures:\\n    {test}\\n\\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\\n'\n\
         exit 101\n"
    );
    let path = directory.join("it-1");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Executable {
        package: "sidekey-e2e".to_owned(),
        target: "it".to_owned(),
        path,
        folder: directory.to_owned(),
        is_end_to_end: true,
        needs_servers: true,
    }
}

/// How an executable fares in a run that runs it so many times.
async fn run(executable: Executable, times: usize) -> Vec<Outcome> {
    let tests = executable.tests(false, |_| true).unwrap();
    let workspace = Workspace::load().unwrap();
    let runner = Runner::new(executable.folder.join("verify")).unwrap();
    let (workspace, runner) = (&workspace, &runner);
    let stages = Stages { workspace, runner, all: false, only: None, times, capacity: 10 };
    for _ in 0..times {
        stages.run_tests(&tests, &Cell::new(Some(true)), None).await;
    }
    stages.second_chance(&tests).await;
    runner.outcomes()
}

const GOOD: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

#[tokio::test]
async fn a_starved_test_has_a_second_chance_but_not_in_a_run_that_looks_for_such_tests() {
    let dir = tempfile::tempdir().unwrap();
    let once = run(starved(dir.path(), "light::x", "e2e/x.rs", GOOD), 1).await;
    assert!(once[0].flaky && once[0].counts.failed == 0, "{once:?}");
    assert_eq!(once.len(), 2, "{once:?}");
    let dir = tempfile::tempdir().unwrap();
    let twice = run(starved(dir.path(), "light::x", "e2e/x.rs", GOOD), 2).await;
    let failed: Vec<u64> = twice.iter().map(|outcome| outcome.counts.failed).collect();
    assert_eq!(failed, [1, 0], "{twice:?}");
    assert!(!twice.iter().any(|outcome| outcome.flaky), "{twice:?}");
}

#[tokio::test]
async fn of_an_executable_with_real_servers_the_test_that_was_starved_runs_again_alone() {
    let of_a_provider = |executable| Executable {
        package: "sidekey-x".to_owned(),
        target: "promises".to_owned(),
        is_end_to_end: false,
        ..executable
    };
    for test in ["keys::x", "x"] {
        let dir = tempfile::tempdir().unwrap();
        let executable = starved(dir.path(), test, "providers/x/tests/promises/keys.rs", GOOD);
        let outcomes = run(of_a_provider(executable), 1).await;
        assert!(outcomes[0].flaky && outcomes[0].counts.failed == 0, "{outcomes:?}");
        let again = std::fs::read_to_string(dir.path().join("again")).unwrap();
        assert_eq!(again.trim(), format!("--exact --test-threads=1 {test}"));
    }
    // What starts no server has no machine to wait for.
    let dir = tempfile::tempdir().unwrap();
    let executable = starved(dir.path(), "x::y", "providers/x/tests/promises/keys.rs", GOOD);
    let own = Executable { needs_servers: false, ..of_a_provider(executable) };
    let outcomes = run(own, 1).await;
    assert_eq!((outcomes.len(), outcomes[0].counts.failed), (1, 1), "{outcomes:?}");
}

#[tokio::test]
async fn a_second_run_that_ran_no_test_forgives_nothing() {
    let nothing = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'";
    let dir = tempfile::tempdir().unwrap();
    let outcomes = run(starved(dir.path(), "light::x", "e2e/x.rs", nothing), 1).await;
    assert_eq!((outcomes.len(), outcomes[0].counts.failed), (2, 1), "{outcomes:?}");
}

#[test]
fn executables_are_found_among_cargos_messages() {
    let text = concat!(
        r#"{"reason":"build-script-executed","package_id":"x"}"#,
        "\n",
        r#"{"reason":"compiler-artifact","manifest_path":"/x/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":false},"executable":null}"#,
        "\n",
        r#"{"reason":"compiler-artifact","manifest_path":"/x/Cargo.toml","target":{"name":"b","kind":["test"]},"profile":{"test":true},"executable":"/t/b"}"#,
        "\nnot json\n",
    );
    let found: Vec<Artifact> = artifacts(text).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].target.name, "b");
    assert!(found[0].profile.test);
}
