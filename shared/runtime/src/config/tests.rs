//! The loader as a whole: every problem at once, each with its place; variables over the file; secrets by reference.

use std::path::PathBuf;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

/// A service's section with one field of each kind.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Worker {
    timeout_ms: u64,
    tool_timeout: DurationMs,
    inline_limit: ByteSize,
    ratio: f64,
    enabled: bool,
    mode: Mode,
    name: String,
    pools: Vec<String>,
    limits: Limits,
    extra: Option<Limits>,
    #[serde(skip_serializing)]
    key: Option<Key>,
}

#[derive(Debug, Deserialize, Clone)]
#[serde(transparent)]
struct Key(Secret);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.expose() == other.0.expose()
    }
}

#[derive(Debug, Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum Mode {
    KeepFirst,
    Replace,
    Limited(u8),
}

#[derive(Debug, Deserialize, PartialEq, Clone)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Limits {
    depth: u8,
    max_tokens: u32,
    max_calls: u32,
    graph_concurrency: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth: 3, max_tokens: 1000, max_calls: 16, graph_concurrency: 8 }
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            timeout_ms: 30_000,
            tool_timeout: DurationMs::from_secs(30),
            inline_limit: ByteSize::from_kib(64),
            ratio: 0.5,
            enabled: true,
            mode: Mode::Replace,
            name: "worker".into(),
            pools: Vec::new(),
            limits: Limits::default(),
            extra: None,
            key: None,
        }
    }
}

impl Validate for Worker {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("timeoutMs", self.timeout_ms, 1..=2_147_483_647);
        check.range("toolTimeout", self.tool_timeout, DurationMs::from_ms(1)..=DurationMs::from_secs(300));
        check.that("name", !self.name.is_empty(), "a text that is not empty");
        check.nested("limits", &self.limits);
        if let Some(extra) = &self.extra {
            check.nested("extra", extra);
        }
    }
}

impl Validate for Limits {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("depth", self.depth, 1..=32);
        check.range("maxTokens", self.max_tokens, 1..=1_000_000);
        check.range("graphConcurrency", self.graph_concurrency, 1..=10_000);
    }
}

const SECTION: &str = "workers.interaction";

fn file(text: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ditto.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn env(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>().into_iter()
}

fn read(text: &str, variables: &[(&str, &str)]) -> Result<Worker, ConfigErrors> {
    let (_folder, path) = file(text);
    load(Some(&path), env(variables))?.section(SECTION)
}

/// The problems as lines, without the file's name.
fn problems(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
    read(text, variables).map_or_else(
        |errors| errors.problems().iter().map(ToString::to_string).collect(),
        |value| panic!("accepted: {value:?}"),
    )
}

/// The section with one line in it.
fn section(line: &str) -> String {
    format!("workers:\n  interaction:\n    {line}\n")
}

#[test]
fn what_is_not_allowed_is_refused_as_the_table_says() {
    #[rustfmt::skip]
    let table = [
        // what is written                              line:column and key                             what is said of it
        (section("limits: { depth: 0 }"),               "3:22: workers.interaction.limits.depth",        "expected 1 to 32, found 0"),
        (section("limits: { depht: 1 }"),               "3:15: workers.interaction.limits.depht",        "did you mean `depth`?"),
        (section("limits: { maxTokens: -1 }"),          "3:26: workers.interaction.limits.maxTokens",    "expected a whole number from 0 to 4294967295, found the number -1"),
        (section("limits: { maxCalls: -1 }"),           "3:25: workers.interaction.limits.maxCalls",     "expected a whole number"),
        (section("apiKey: abc"),                        "3:5: workers.interaction.apiKey",               "unknown key"),
        (section("timeoutMs: 2147483648"),              "3:16: workers.interaction.timeoutMs",           "expected 1 to 2147483647, found 2147483648"),
        (section("timeoutMs: 0"),                       "3:16: workers.interaction.timeoutMs",           "expected 1 to 2147483647, found 0"),
        (section("timeoutMs: 1.5"),                     "3:16: workers.interaction.timeoutMs",           "found the number 1.5"),
        (section("timeoutMs: 99999999999999999999"),    "3:16: workers.interaction.timeoutMs",           "expected a whole number, not negative"),
        (section("timeoutMs: .inf"),                    "3:16: workers.interaction.timeoutMs",           "expected a whole number"),
        (section("timeoutMs: \"5\""),                   "3:16: workers.interaction.timeoutMs",           "found a text"),
        (section("limits: { graphConcurrency: 0 }"),    "3:33: workers.interaction.limits.graphConcurrency", "expected 1 to 10000, found 0"),
        (section("limits: { graphConcurrency: 1.5 }"),  "3:33: workers.interaction.limits.graphConcurrency", "found the number 1.5"),
        (section("name: a\n    name: b"),               "4:5: workers.interaction.name",                 "expected each key once"),
        (section("name: &x a"),                         "3:11: workers.interaction.name",                "found an anchor"),
        (section("name: &x a\n    mode: *x"),           "4:11: workers.interaction.mode",                "found an alias"),
        (section("name: !!str a"),                      "3:11: workers.interaction.name",                "found a tag"),
        (section("<<: { name: a }"),                    "3:5: workers.interaction.<<",                   "unknown key"),
        (section("__proto__: { name: a }"),             "3:5: workers.interaction.__proto__",            "unknown key"),
        (section("name:"),                              "3:9: workers.interaction.name",                      "found nothing"),
        (section("name: ~"),                            "3:11: workers.interaction.name",                "found nothing"),
        (section("name: 5"),                            "3:11: workers.interaction.name",                "expected a text, found the number 5"),
        (section("name: \"\""),                         "3:11: workers.interaction.name",                "not empty"),
        (section("enabled: yes"),                       "3:14: workers.interaction.enabled",             "expected `true` or `false`, found a text"),
        (section("mode: keep_first"),                   "3:11: workers.interaction.mode",                "expected one of `keepFirst`, `replace` or `limited`"),
        (section("mode: { limited: 300 }"),             "3:22: workers.interaction.mode",                "expected a whole number from 0 to 255"),
        (section("toolTimeout: 42"),                    "3:18: workers.interaction.toolTimeout",         "expected a duration"),
        (section("toolTimeout: 1.5h"),                  "3:18: workers.interaction.toolTimeout",         "expected a duration"),
        (section("toolTimeout: 6m"),                    "3:18: workers.interaction.toolTimeout",         "expected 1ms to 5m, found 6m"),
        (section("inlineLimit: 64KB"),                  "3:18: workers.interaction.inlineLimit",         "expected a whole number of bytes with a unit"),
        (section("pools: a"),                           "3:12: workers.interaction.pools",               "expected a list, found a text"),
        (section("pools: [a, 5]"),                      "3:16: workers.interaction.pools[1]",            "expected a text, found the number 5"),
        (section("limits: [1]"),                        "3:13: workers.interaction.limits",              "expected a mapping, found a list"),
        (section("key: hunter2"),                       "3:10: workers.interaction.key",                 "expected a secret by reference"),
        (section("key: { value: hunter2 }"),            "3:10: workers.interaction.key",                 "expected a secret by reference"),
        (section("key: { env: NOT_SET }"),              "3:10: workers.interaction.key",                 "expected the variable NOT_SET to be set"),
        (section("key: { file: nowhere }"),             "3:10: workers.interaction.key",                 "expected a readable secret file"),
        ("workers:\n  interaction:\n".into(),           "2:14: workers.interaction",                           "found nothing"),
        ("workers: 5\n".into(),                         "1:10: workers",                                 "expected a mapping, found the number 5"),
        ("workers:\n  interaction: 5\n".into(),         "2:16: workers.interaction",                     "expected a mapping"),
        ("infer: {}\n".into(),                          "1:1: infer",                                    "unknown section"),
        ("workers:\n  interactoin: {}\n".into(),        "2:3: workers.interactoin",                      "did you mean `interaction`?"),
        ("? [a]\n: b\n".into(),                         "1:3",                                           "expected a key that is plain text"),
        ("- a\n".into(),                                "1:1",                                           "expected a mapping of sections, found a list"),
        ("text".into(),                                 "1:1",                                           "expected a mapping of sections, found a text"),
        (String::new(),                                 "",                                              "found an empty file"),
        ("# nothing\n".into(),                          "",                                              "found an empty file"),
        ("---\n".into(),                                "2:1",                                           "found nothing"),
        ("bus: {}\n---\nbus: {}\n".into(),              "2:1",                                           "found a second one"),
        ("bus: {\n".into(),                             "",                                              "not valid YAML"),
        ("bus: *unknown\n".into(),                      "1:6",                                           "not valid YAML"),
        (format!("bus: {}{}\n", "[".repeat(40), "]".repeat(40)), "1:",                                   "expected at most 32 levels"),
    ];
    let mut wrong = Vec::new();
    for (text, place, message) in table {
        let found = problems(&text, &[]);
        assert!(!found.iter().any(|line| line.contains("hunter2")), "{found:#?}");
        if !found.iter().any(|line| line.starts_with(place) && line.contains(message)) {
            wrong.push(format!(
                "{text}
{found:#?}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}",
        wrong.join(
            "
"
        )
    );
}

#[test]
fn every_problem_of_file_and_environment_is_reported_at_once() {
    let text = "\
log: { format: loud }
colour: red
workers:
  interaction:
    timeoutMs: 0
    timeoutMs: 5
    limits: { depht: 1, maxTokens: -1 }
    toolTimeout: 1.5h
    pools: [a, 5]
    surprise: 1
";
    let (_folder, path) = file(text);
    let variables =
        [("DITTO_WORKER_INTERACTION_ENABLED", "yes"), ("DITTO_WORKER_INTERACTION_NAMES", "x"), ("DITTO_COLOUR", "red")];
    let tree = load(Some(&path), env(&variables)).unwrap();
    let mut reader = tree.reader();
    let _: Worker = reader.section(SECTION);
    let _ = crate::telemetry::TelemetryConfig::read(&mut reader);
    let _: Worker = reader.section("workers.interactions");
    let errors = reader.finish().unwrap_err();
    let keys: Vec<String> = errors
        .problems()
        .iter()
        .map(|problem| problem.to_string().split(": ").take(2).collect::<Vec<_>>().join(" "))
        .collect();
    #[rustfmt::skip]
    assert_eq!(keys, [
        "1:16 log.format",
        "2:1 colour",
        "5:16 workers.interaction.timeoutMs",
        "6:5 workers.interaction.timeoutMs",
        "7:15 workers.interaction.limits.depht",
        "7:36 workers.interaction.limits.maxTokens",
        "8:18 workers.interaction.toolTimeout",
        "9:16 workers.interaction.pools[1]",
        "10:5 workers.interaction.surprise",
        "workers.interactions no such section is known to this build",
        "DITTO_COLOUR unknown variable",
        "DITTO_WORKER_INTERACTION_ENABLED workers.interaction.enabled",
        "DITTO_WORKER_INTERACTION_NAMES workers.interaction",
    ], "{errors}");
    let shown = errors.to_string();
    assert_eq!(shown.lines().count(), errors.problems().len());
    assert!(shown.starts_with(&format!("{}:1:16: log.format: expected one of", path.display())), "{shown}");
    assert!(shown.contains("DITTO_WORKER_INTERACTION_NAMES: workers.interaction: unknown variable, did you mean DITTO_WORKER_INTERACTION_NAME?"), "{shown}");
}

#[test]
fn items_of_a_list_are_named_as_they_are_in_the_file() {
    let found = problems(&section("pools: [1, a, 2, [x], b, true]"), &[]);
    let places: Vec<&str> = found.iter().map(|line| line.split(": expected").next().unwrap()).collect();
    #[rustfmt::skip]
    assert_eq!(places, [
        "3:13: workers.interaction.pools[0]",
        "3:19: workers.interaction.pools[2]",
        "3:22: workers.interaction.pools[3]",
        "3:30: workers.interaction.pools[5]",
    ]);
}

#[test]
fn a_file_that_was_asked_for_is_not_replaced_by_another() {
    assert_eq!(find_file(Some("nowhere.yaml".into())), Some("nowhere.yaml".into()));
}

#[test]
fn variables_win_over_the_file_field_by_field() {
    let text = section("timeoutMs: 5\n    limits: { depth: 2, maxTokens: 7 }\n    name: file");
    let value = read(
        &text,
        &[
            ("DITTO_WORKER_INTERACTION_TIMEOUT_MS", "250"),
            ("DITTO_WORKER_INTERACTION_TOOL_TIMEOUT", "1m30s"),
            ("DITTO_WORKER_INTERACTION_INLINE_LIMIT", "1MiB"),
            ("DITTO_WORKER_INTERACTION_RATIO", "0.25"),
            ("DITTO_WORKER_INTERACTION_ENABLED", "false"),
            ("DITTO_WORKER_INTERACTION_MODE", "keepFirst"),
            ("DITTO_WORKER_INTERACTION_POOLS", "a, b"),
            ("DITTO_WORKER_INTERACTION_LIMITS_DEPTH", "9"),
            ("DITTO_WORKER_INTERACTION_EXTRA_MAX_CALLS", "1"),
            ("DITTO_WORKER_INTERACTION_KEY", "hunter2"),
            ("DITTO_WORKER_INTERACTION_NAME", ""),
            ("DITTO_LOG", "debug"),
            ("DITTO_TEST_ANYTHING", "x"),
            ("DITTO_WORKER_MEMORY_ANYTHING", "read by another process"),
            ("PATH", "/bin"),
        ],
    )
    .unwrap();
    let expected = Worker {
        timeout_ms: 250,
        tool_timeout: DurationMs::from_secs(90),
        inline_limit: ByteSize::from_mib(1),
        ratio: 0.25,
        enabled: false,
        mode: Mode::KeepFirst,
        name: "file".into(), // an empty variable counts as not set
        pools: vec!["a".into(), "b".into()],
        limits: Limits { depth: 9, max_tokens: 7, ..Limits::default() },
        extra: Some(Limits { max_calls: 1, ..Limits::default() }),
        key: Some(Key(Secret::new("hunter2"))),
    };
    assert_eq!(value, expected);
    assert!(!format!("{value:?}").contains("hunter2"));
}

#[test]
fn a_wrong_variable_is_refused_by_name_and_never_by_value() {
    #[rustfmt::skip]
    let table = [
        ("DITTO_WORKER_INTERACTION_ENABLED",          "yes",     "expected `true` or `false`"),
        ("DITTO_WORKER_INTERACTION_ENABLED",          "TRUE",    "expected `true` or `false`"),
        ("DITTO_WORKER_INTERACTION_TIMEOUT_MS",       "hunter2", "expected a whole number"),
        ("DITTO_WORKER_INTERACTION_TIMEOUT_MS",       "1.5",     "expected a whole number"),
        ("DITTO_WORKER_INTERACTION_TIMEOUT_MS",       "-1",      "expected a whole number, not negative"),
        ("DITTO_WORKER_INTERACTION_TIMEOUT_MS",       "0",       "expected 1 to 2147483647, found 0"),
        ("DITTO_WORKER_INTERACTION_RATIO",            "NaN",     "expected a number"),
        ("DITTO_WORKER_INTERACTION_MODE",             "hunter2", "expected one of"),
        ("DITTO_WORKER_INTERACTION_TOOL_TIMEOUT",     "42",      "expected a duration"),
        ("DITTO_WORKER_INTERACTION_POOLS",            "x,x",     "without empty or repeated items"),
        ("DITTO_WORKER_INTERACTION_POOLS",            "x,,y",    "without empty or repeated items"),
        ("DITTO_WORKER_INTERACTION_LIMITS",           "hunter2", "expected a mapping"),
        ("DITTO_WORKER_INTERACTION_LIMITS_DEPHT",     "hunter2", "did you mean DITTO_WORKER_INTERACTION_LIMITS_DEPTH?"),
        ("DITTO_WORKER_INTERACTION_LIMITS_DEPTH",     "0",       "expected 1 to 32, found 0"),
        ("DITTO_WORKER_INTERACTION_NAME_FIRST",       "hunter2", "unknown variable"),
        ("DITTO_WORKER_INTERACTION_SANDBOX_TIMEOUT",  "hunter2", "unknown variable"),
        ("DITTO_WORKER_TIMEOUT",                      "hunter2", "unknown variable"),
        ("DITTO_API_KEY",                             "hunter2", "unknown variable"),
        ("DITTO_INSTANCES",                           "hunter2", "did you mean DITTO_INSTANCE?"),
        ("DITTO_TEST_FAULT",                          "hunter2", "expected `<point>:<nth>:<kill|pause|exit|drop>`"),
    ];
    for (name, value, message) in table {
        let found = problems("bus: {}\n", &[(name, value)]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with(&format!("{name}: ")) && found[0].contains(message), "{found:#?}");
        assert!(!found[0].contains("hunter2"), "{found:#?}");
    }
}

#[test]
fn a_secret_comes_by_reference_to_a_variable_or_a_file() {
    let (folder, path) = file(section("key: { env: BRAVE_KEY }"));
    let tree = load(Some(&path), env(&[("BRAVE_KEY", "hunter2")])).unwrap();
    assert_eq!(tree.section::<Worker>(SECTION).unwrap().key.unwrap().0.expose(), "hunter2");
    assert!(!format!("{tree:?}").contains("hunter2"));

    // A variable of ours that the file refers to is no unknown one.
    std::fs::write(&path, section("key: { env: DITTO_MY_KEY }")).unwrap();
    let tree = load(Some(&path), env(&[("DITTO_MY_KEY", "hunter2")])).unwrap();
    assert!(tree.section::<Worker>(SECTION).is_ok());

    std::fs::write(folder.path().join("key.txt"), "hunter2\r\n").unwrap();
    std::fs::write(&path, section("key: { file: key.txt }")).unwrap();
    let tree = load(Some(&path), env(&[])).unwrap();
    assert_eq!(tree.section::<Worker>(SECTION).unwrap().key.unwrap().0.expose(), "hunter2");

    std::fs::write(folder.path().join("key.txt"), "x".repeat(65 * 1024)).unwrap();
    let refused = tree.section::<Worker>(SECTION).unwrap_err().to_string();
    assert!(refused.contains("more than 65536 bytes"), "{refused}");
}

#[test]
fn a_file_has_a_bound_and_must_exist() {
    let (_folder, path) = file(format!("bus: {{}}\n#{}", "x".repeat(1024 * 1024)));
    let refused = load(Some(&path), env(&[])).unwrap_err().to_string();
    assert!(refused.contains("expected at most 1048576 bytes"), "{refused}");

    let (_folder, path) = file(b"bus: {}\n# \xff\n");
    assert!(load(Some(&path), env(&[])).unwrap_err().to_string().contains("expected UTF-8"));

    let missing = path.with_file_name("missing.yaml");
    let refused = load(Some(&missing), env(&[])).unwrap_err();
    assert_eq!(refused.to_string(), format!("{}: expected a readable file: entity not found", missing.display()));
}

#[test]
fn without_file_and_variables_everything_has_its_default() {
    let tree = load(None, env(&[])).unwrap();
    assert_eq!(tree.section::<Worker>(SECTION).unwrap(), Worker::default());
    assert!(!tree.has_section(SECTION));
    let tree = load(None, env(&[("DITTO_WORKER_INTERACTION_NAME", "x"), ("DITTO_TOKEN", "hunter2")])).unwrap();
    assert!(tree.has_section(SECTION));
    assert_eq!(tree.variable("DITTO_TOKEN"), Some("hunter2"));
    assert_eq!(tree.variable_names().collect::<Vec<_>>(), ["DITTO_TOKEN", "DITTO_WORKER_INTERACTION_NAME"]);
}

#[test]
fn a_loaded_value_does_not_change_with_its_source() {
    let (_folder, path) = file(section("timeoutMs: 5"));
    let tree = load(Some(&path), env(&[])).unwrap();
    std::fs::write(&path, section("timeoutMs: 6")).unwrap();
    assert_eq!(tree.section::<Worker>(SECTION).unwrap().timeout_ms, 5);
}

#[test]
fn problems_of_two_readings_are_merged_without_repeating() {
    let (_folder, path) = file("colour: red\nlog: { format: loud }\nworkers: { interaction: { timeoutMs: 0 } }\n");
    let tree = load(Some(&path), env(&[])).unwrap();
    let mut errors = tree.section::<Worker>(SECTION).unwrap_err();
    errors.merge(tree.section::<crate::telemetry::LogConfig>("log").unwrap_err());
    assert_eq!(errors.problems().len(), 3, "{errors}");
}

#[test]
fn hostile_files_are_refused_with_a_bounded_list() {
    let size = 500_000;
    for text in [
        "[".repeat(size),
        "{".repeat(size),
        "- ".repeat(size / 2),
        "? ".repeat(size / 2),
        "{a: ".repeat(size / 4),
        "&a ".repeat(size / 3),
        "!a ".repeat(size / 3),
        "\"".repeat(size),
        "#".repeat(size),
        "a: ".repeat(size / 3),
        format!("bus: [{}]", "a, ".repeat(size / 3)),
        format!("bus: {{{}}}", (0..30_000).map(|i| format!("k{i}: 1, ")).collect::<String>()),
        format!("a: &a [x]\n{}", "b: *a\n".repeat(50_000)),
        section(&(0..10_000).map(|i| format!("k{i}: 1\n    ")).collect::<String>()),
    ] {
        let refused = read(&text, &[]);
        let beginning: String = text.chars().take(40).collect();
        assert!(refused.is_err() || text.starts_with("bus: [") || text.starts_with("bus: {"), "{beginning}");
        assert!(refused.err().is_none_or(|errors| errors.problems().len() <= 200), "{beginning}");
    }
}

proptest! {
    #[test]
    fn no_text_ends_the_loader(text in "[a-z:\\-{}\\[\\],&*!|>'\"%@`#? \n\t0-9~.é\u{0}\u{feff}]{0,120}") {
        let _ = read(&text, &[]);
        let _ = read(&section(&text), &[]);
        let _ = redact_url(&text);
        let _ = text.parse::<DurationMs>();
        let _ = text.parse::<ByteSize>();
    }

    #[test]
    fn no_variable_ends_the_loader(name in "[A-Z_]{0,12}", value in "\\PC{0,20}") {
        let name = format!("DITTO_WORKER_INTERACTION_{name}");
        let _ = load(None, env(&[(&name, &value)])).and_then(|tree| tree.section::<Worker>(SECTION));
    }
}
