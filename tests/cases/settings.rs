//! Sections 9, 11, 12 and 13 where they say what a definition and a configuration may hold.

use ditto_interaction::InteractionConfig;
use ditto_runtime::config;

/// The problems of a definition with this line at its top level.
fn definition(line: &str) -> String {
    compiled(&format!("ditto: 1\nloop: x\ngraph: {{ tasks: {{ a: {{ node: A.B }} }} }}\ndone: true\n{line}\n"))
}

/// The problems of a definition with these settings of its task.
fn task(name: &str, settings: &str) -> String {
    compiled(&format!("ditto: 1\nloop: x\ngraph:\n  tasks:\n    {name}: {{ node: A.B, {settings} }}\n"))
}

fn compiled(text: &str) -> String {
    match ditto_definition::compile(text, "case.yaml") {
        Ok(_) => String::new(),
        Err(problems) => problems.iter().map(|problem| format!("{problem}\n")).collect(),
    }
}

/// What an interaction worker says of this configuration.
fn worker(settings: &str, environment: &[(&str, &str)]) -> Result<InteractionConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ditto.yaml");
    std::fs::write(&file, settings).unwrap();
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let tree = config::load(Some(&file), environment.into_iter()).map_err(|error| error.to_string())?;
    let mut reader = tree.reader();
    let section = reader.section("workers.interaction");
    reader.finish().map_err(|error| error.to_string())?;
    Ok(section)
}

fn refused(settings: &str, environment: &[(&str, &str)], fragment: &str) {
    let error = worker(settings, environment).expect_err(settings);
    assert!(error.contains(fragment), "{settings} {environment:?}: {error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn case_259_a_concurrency_that_is_no_count_is_refused() {
    for value in ["0", "-1", "1.5", ".nan"] {
        let problems = definition(&format!("concurrency: {value}"));
        assert!(problems.contains("concurrency"), "{value}: {problems}");
    }
    assert_eq!(definition("concurrency: 1"), "");
}

#[test]
fn case_271_a_worker_without_nodes_or_room_for_a_call_is_refused() {
    let error = ditto_worker::Worker::builder("empty").build().err().unwrap();
    assert!(error.to_string().contains("serves no node"), "{error}");
    refused("workers: { interaction: { concurrency: 0 } }\n", &[], "workers.interaction.concurrency");
}

#[test]
fn case_307_a_loop_has_no_switch_for_its_checkpoints() {
    assert!(definition("checkpoint: true").contains("unknown key `checkpoint`"));
}

#[test]
fn case_319_times_and_ids_out_of_range_are_refused() {
    for value in ["0ms", "-1ms", ".inf", "1.5ms", "2147483648ms"] {
        let problems = task("a", &format!("timeout: {value}"));
        assert!(problems.contains("timeout"), "{value}: {problems}");
    }
    assert_eq!(task("a", "timeout: 2147483647ms"), "");
    assert!(task("\"\"", "timeout: 1s").contains("task id is empty"));
}

#[test]
fn case_340_a_file_with_a_mistake_is_refused_at_its_place() {
    refused("workers: { interaction: { concurency: 1 } }\n", &[], "did you mean `concurrency`?");
    refused("workers: { interaction: { concurrency: -1 } }\n", &[], "workers.interaction.concurrency");
    refused("workers: { interaction: { toolTimeout: 2147483648ms } }\n", &[], "workers.interaction.toolTimeout");
    refused("workers: { interaction: { permissions: { apiKey: hunter2 } } }\n", &[], "apiKey");
    refused("workers: { interaction: { concurrency: 1, concurrency: 2 } }\n", &[], "each key once");
    refused("workers: { interaction: { name: &n x, pool: *n } }\n", &[], "an alias");
    refused("", &[], "an empty file");
    refused("workers: { interaction: }\n", &[], "found nothing");
    refused("infer: {}\n", &[], "unknown section");
}

#[test]
fn case_342_limits_that_are_none_are_refused() {
    refused("workers: { interaction: { concurrency: 1.5 } }\n", &[], "workers.interaction.concurrency");
    refused("workers: { interaction: { toolTimeout: 0ms } }\n", &[], "workers.interaction.toolTimeout");
    assert!(definition("maxIterations: 1.5").contains("maxIterations"));
    assert!(definition("concurrency: 0").contains("concurrency"));
}

#[test]
fn case_344_an_unknown_variable_is_named_and_its_value_is_not() {
    refused("log: {}\n", &[("DITTO_INTERACTION_TOKEN", "hunter2")], "DITTO_INTERACTION_TOKEN");
    refused("log: {}\n", &[("DITTO_WORKER_INTERACTION_PERMISSIONS_READ", "yes")], "`true` or `false`");
}
