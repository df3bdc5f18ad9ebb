//! Commands that need no fleet: help, validation, diagnosis, completions.

use crate::support::{Place, example};

#[test]
fn every_help_text_has_an_example() {
    let place = Place::new();
    let top = place.ditto(&["--help"]).expect(0);
    assert!(top.out.contains("Examples:") && top.out.contains("Exit codes:"), "{}", top.out);
    #[rustfmt::skip]
    let commands: [&[&str]; 26] = [
        &["run"], &["dev"], &["validate"], &["submit"], &["coordinator"], &["worker", "interaction"], &["migrate"], &["doctor"],
        &["completions"], &["runs", "ls"], &["runs", "show"], &["runs", "wait"], &["runs", "events"], &["runs", "cancel"],
        &["runs", "signal"], &["receipts", "ls"], &["receipts", "show"], &["receipts", "resolve"], &["definitions", "ls"],
        &["definitions", "show"], &["definitions", "put"], &["tools", "ls"], &["sessions", "ls"], &["sessions", "end"],
        &["runs", "ls", "--json"], &["run", "--config", "x"],
    ];
    for command in commands {
        let said = place.ditto(&[command, &["--help"]].concat()).expect(0);
        assert!(said.out.contains("Example"), "{command:?}: {}", said.out);
        assert!(!said.out.contains('\x1b'), "{command:?}");
    }
    assert!(place.ditto(&["--version"]).expect(0).out.starts_with("ditto "));
    place.ditto(&["nonsense"]).expect(2);
}

#[test]
fn validation_shows_every_problem_with_its_line() {
    let place = Place::new();
    let files = [&example("approval.yaml"), &example("branching.yaml"), &example("read-and-deliver.yaml")];
    let good = place.ditto(&["validate", files[0], files[1], files[2]]).expect(0);
    assert_eq!(good.out.lines().filter(|line| line.starts_with("ok")).count(), 3, "{}", good.out);

    let source = std::fs::read_to_string(files[2]).unwrap();
    place.write(
        "bad.yaml",
        &source.replace("needs: [read]", "needs: [raed]").replace("maxIterations: 32", "maxIteration: 32"),
    );
    let bad = place.ditto(&["validate", files[0], "bad.yaml", "nothing.yaml"]).expect(2);
    for fragment in [
        "bad.yaml:13:1: ",
        "did you mean `maxIterations`?",
        "\n 13 | maxIteration: 32\n",
        "| ^\n",
        "needs[0]",
        "2 of 3",
        "nothing.yaml",
    ] {
        assert!(bad.err.contains(fragment), "{fragment:?} in {}", bad.err);
    }
    let json = place.ditto(&["validate", files[0], "bad.yaml", "--json"]).expect(2).json();
    assert_eq!(json[0]["valid"], true);
    assert_eq!(json[1]["problems"][0]["line"], 13);
    // `ditto run` refuses it with the same words.
    assert!(place.ditto(&["run", "bad.yaml"]).expect(2).err.contains("bad.yaml:13:1: "));
}

#[test]
fn a_wrong_configuration_is_reported_whole() {
    let place = Place::new();
    place.write(
        "ditto.yaml",
        "coordinator: { sweepPeriodMs: 1 }\nledgr: {}\nworkers: { interaction: { concurrency: 0 } }\n",
    );
    let said = place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", r#"{"paths":["a.txt"]}"#]).expect(2);
    for fragment in [
        "3 problems",
        "ditto.yaml:1:31: coordinator.sweepPeriodMs: expected 10 to 60000, found 1",
        "did you mean `ledger`?",
        "workers.interaction.concurrency: expected 1 to 65536, found 0",
    ] {
        assert!(said.err.contains(fragment), "{fragment} in {}", said.err);
    }
    let doctor = place.ditto(&["doctor"]).expect(2);
    assert!(doctor.out.contains("broken") && doctor.out.contains("sweepPeriodMs"), "{}", doctor.out);
}

#[test]
fn the_doctor_says_what_is_there_and_what_is_not() {
    let place = Place::new();
    let well = place.ditto(&["doctor", "--json"]).expect(0).json();
    assert_eq!(well["ok"], true);
    let mut command =
        place.command(&["doctor", "--nats", "nats://joe:hunter2@127.0.0.1:9", "--server", "http://127.0.0.1:9"]);
    command.env("DITTO_LEDGER_URL", "postgres://joe:hunter2@127.0.0.1:9/ditto");
    let ill = place.finish(command).expect(7);
    for check in ["ledger", "bus", "server"] {
        let line = ill.out.lines().find(|line| line.starts_with("broken") && line.contains(check));
        assert!(line.is_some(), "{check} in {}", ill.out);
    }
    assert!(!ill.out.contains("hunter2") && !ill.err.contains("hunter2"), "{ill:?}");
    let mut command = place.command(&["doctor"]);
    command.env("DITTO_TEST_FAULT", "never:1:kill");
    assert!(place.finish(command).expect(0).out.contains("on purpose"));
}

#[test]
fn a_backend_that_is_away_is_an_error_and_its_password_is_not_shown() {
    let place = Place::new();
    let said = place.ditto(&["submit", "x", "--nats", "nats://joe:hunter2@127.0.0.1:9"]).expect(7);
    assert!(said.err.contains("127.0.0.1:9") && !said.err.contains("hunter2"), "{}", said.err);
    let said = place.ditto(&["migrate", "--ledger", "postgres://joe:hunter2@127.0.0.1:9/x"]).expect(7);
    assert!(said.err.contains("127.0.0.1:9") && !said.err.contains("hunter2"), "{}", said.err);
    let said = place.ditto(&["migrate"]).expect(2);
    assert!(said.err.contains("ledger.url: is not set"), "{}", said.err);
    let said = place.ditto(&["migrate", "--ledger", "sqlite:x/ledger.db", "--json"]).expect(0);
    assert_eq!(said.json()["migrated"], true);
}

#[test]
fn shells_get_their_completions() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.ditto(&["completions", shell]).expect(0).out.contains("ditto"), "{shell}");
    }
}
