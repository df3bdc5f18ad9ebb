//! `ditto run`: results, exit codes, and what is said when something is wrong.

use crate::support::{Place, example};

const TWO: &str = r#"{"paths":["a.txt","b.txt"]}"#;

#[test]
fn the_result_is_all_of_stdout_and_progress_is_on_stderr() {
    let place = Place::new();
    let said = place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", TWO]).expect(0);
    assert_eq!(said.out, "{\"delivered\":2}\n");
    for fragment in ["0/read", "INTERACTION.ACT.TOOL", "1/output", "succeeded", "completed in", "2 iterations, 6 tasks"]
    {
        assert!(said.err.contains(fragment), "{fragment} in {}", said.err);
    }
    // The console sink is a line of stderr too.
    assert!(said.err.contains(r#""content":"world\n""#), "{}", said.err);
    assert!(!said.err.contains('\x1b'), "colours without a terminal: {}", said.err);
    assert!(!said.err.contains("WARN"), "{}", said.err);
    let quiet = place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", TWO, "-q"]).expect(0);
    assert!(!quiet.err.contains("0/read"), "{}", quiet.err);
}

#[test]
fn input_comes_from_an_option_a_file_stdin_and_single_members() {
    let place = Place::new();
    place.write("input.json", TWO);
    let file = example("read-and-deliver.yaml");
    assert_eq!(place.ditto(&["run", &file, "--input", "@input.json"]).expect(0).out, "{\"delivered\":2}\n");
    assert_eq!(place.with_stdin(&["run", &file, "--input", "-"], TWO).expect(0).out, "{\"delivered\":2}\n");
    let said = place.ditto(&["run", &file, "--input", "@input.json", "--set", r#"paths=["a.txt"]"#]).expect(0);
    assert_eq!(said.out, "{\"delivered\":1}\n");
}

#[test]
fn what_is_wrong_is_named_before_anything_starts() {
    let place = Place::new();
    let file = example("read-and-deliver.yaml");
    #[rustfmt::skip]
    let table: [(&[&str], &str); 8] = [
        (&["run", &file],                                            "\"paths\" is a required property"),
        (&["run", &file, "--input", r#"{"paths":[7]}"#],             "input.paths[0]"),
        (&["run", &file, "--input", r#"{"paths":"#],                 "--input: is not acceptable JSON"),
        (&["run", &file, "--input", "@nothing.json"],                "nothing.json: there is no such file"),
        (&["run", &file, "--input", TWO, "--set", "novalue"],        "--set: expected key=value"),
        (&["run", "nothing.yaml"],                                   "FILE: cannot read nothing.yaml"),
        (&["run", &file, "--input", TWO, "--namespace", "a.b"],      "namespace contains '.'"),
        (&["run"],                                                   "FILE"),
    ];
    for (arguments, fragment) in table {
        let said = place.ditto(arguments).expect(2);
        assert!(said.err.contains(fragment), "{fragment} in {}", said.err);
        assert_eq!(said.out, "");
    }
    assert!(!place.path(".ditto").exists(), "nothing was started");
    let said = place.ditto(&["run", "--resume", "01M8PTMZWXFV6T7W1K658EQDGH"]).expect(2);
    assert!(said.err.contains("--resume: no run 01M8PTMZWXFV6T7W1K658EQDGH"), "{}", said.err);
}

#[test]
fn a_workspace_that_is_not_there_is_a_mistake_in_the_configuration() {
    let place = Place::new();
    place.write("ditto.yaml", "workers: { interaction: { workspace: nowhere } }\n");
    let said = place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", TWO]).expect(2);
    assert!(said.err.contains("workers.interaction: failed to set up the sandbox"), "{}", said.err);
}

#[test]
fn a_failing_task_fails_the_run_with_its_code() {
    let place = Place::new();
    let said =
        place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", r#"{"paths":["missing.txt"]}"#]).expect(1);
    assert_eq!(said.out, "");
    assert!(said.err.contains("NOT_FOUND") && said.err.contains("error:"), "{}", said.err);
}

#[test]
fn json_is_for_machines_also_when_it_fails() {
    let place = Place::new();
    let file = example("read-and-deliver.yaml");
    let said = place.ditto(&["run", &file, "--input", TWO, "--json"]).expect(0);
    let run = said.json();
    assert_eq!((run["status"].as_str(), &run["output"]["delivered"]), (Some("completed"), &serde_json::json!(2)));
    let said = place.ditto(&["run", &file, "--json"]).expect(2);
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!((error["error"]["code"].as_str(), error["error"]["exit"].as_u64()), (Some("INVALID_INPUT"), Some(2)));
}

#[test]
fn a_key_is_one_run_for_ever() {
    let place = Place::with_file_sink();
    let file = example("read-and-deliver.yaml");
    let first = place.ditto(&["run", &file, "--input", TWO, "--key", "k", "--json"]).expect(0).json();
    let again = place.ditto(&["run", &file, "--input", TWO, "--key", "k", "--json"]).expect(0).json();
    assert_eq!(first["runId"], again["runId"]);
    assert_eq!(place.deliveries().len(), 2);
    let other = place.ditto(&["run", &file, "--input", r#"{"paths":["a.txt"]}"#, "--key", "k"]).expect(2);
    assert!(other.err.contains("key: was used for run"), "{}", other.err);
    let resumed = place.ditto(&["run", "--resume", first["runId"].as_str().unwrap()]).expect(0);
    assert_eq!(resumed.out, "{\"delivered\":2}\n");
}

#[test]
fn a_signal_stops_in_order_and_the_run_goes_on_later() {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };
    let place = Place::new();
    place.write(
        "slow.yaml",
        "ditto: 1\nloop: slow\nstate: { n: 0 }\ngraph: { tasks: {} }\nupdate: { n: \"${ state.n + 1 }\" }\n\
         done: \"${ state.n == 2 }\"\nwait: { for: 3s }\noutput: \"${ state.n }\"\n",
    );
    let mut child = place.command(&["run", "slow.yaml"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(line.starts_with("run "), "{line}");
    let run = line.split_whitespace().nth(1).unwrap();
    let hint = said.lines().map(Result::unwrap).find(|line| line.contains("go on with: ditto run --resume"));
    assert!(hint.is_some_and(|hint| hint.contains(run)));
    assert_eq!(place.ditto(&["run", "--resume", run]).expect(0).out, "2\n");
}

#[test]
fn numbers_pass_through_to_the_digit() {
    let place = Place::new();
    let text = "ditto: 1\nloop: echo\ngraph: { tasks: {} }\noutput: \"${ input }\"\n";
    place.write("echo.yaml", text);
    let input = r#"{"n":12345678901234567890123.10,"e":1E400,"s":"\ud83d\ude00"}"#;
    let said = place.ditto(&["run", "echo.yaml", "--input", input]).expect(0);
    assert_eq!(said.out, format!("{input}\n"));
}
