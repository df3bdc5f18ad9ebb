//! Every kind of problem is found at its place, all of them at once, and no text makes the compiler fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use ditto_definition::{Diagnostic, compile, render_all};
use proptest::prelude::*;

fn problems(text: &str) -> Vec<Diagnostic> {
    compile(text, "test.yaml").err().unwrap_or_default()
}

/// A valid definition around one task.
fn with_task(task: &str) -> String {
    let task: String = task.lines().map(|line| format!("      {line}\n")).collect();
    format!(
        "ditto: 1\nloop: x\ngraph:\n  tasks:\n    first: {{ node: A.B }}\n    second:\n{task}    third: {{ node: A.B }}\n"
    )
}

/// A valid definition with further keys at the top, from line 4.
fn with_top(keys: &str) -> String {
    format!("ditto: 1\nloop: x\ngraph: {{ tasks: {{ a: {{ node: A.B }} }} }}\n{keys}\n")
}

#[test]
fn each_problem_is_found_at_its_place() {
    #[rustfmt::skip]
    let table: Vec<(String, usize, usize, &str, &str, &str)> = vec![
        // text, line, column, path, part of the message, part of what is expected
        ("[1]".into(), 1, 1, "", "a list", "a mapping with `ditto`"),
        ("7".into(), 1, 1, "", "the number 7", "a mapping"),
        ("loop: x\ngraph: {tasks: {}}".into(), 1, 1, "", "the key `ditto` is missing", "`ditto: 1`"),
        ("ditto: 2\nloop: x\ngraph: {tasks: {}}".into(), 1, 8, "ditto", "the number 2", "`ditto: 1`"),
        ("ditto: '1'\nloop: x\ngraph: {tasks: {}}".into(), 1, 8, "ditto", "the text \"1\"", "`ditto: 1`"),
        ("ditto: 1\ngraph: {tasks: {}}".into(), 1, 1, "", "the key `loop` is missing", "`loop:"),
        ("ditto: 1\nloop: a b\ngraph: {tasks: {}}".into(), 2, 7, "loop", "contains ' '", "1 to 128 of"),
        ("ditto: 1\nloop: 5\ngraph: {tasks: {}}".into(), 2, 7, "loop", "the number 5", "a definition name"),
        ("ditto: 1\nloop: x".into(), 1, 1, "", "no graph", "`graph:`"),
        (with_top("grahp: {}"), 4, 1, "grahp", "unknown key `grahp`; did you mean `graph`?", "one of `ditto`"),
        (with_top("graphs: {a: {tasks: {}}}\nselect: a"), 4, 1, "graphs", "`graph` and `graphs` together", "only one"),
        ("ditto: 1\nloop: x\ngraphs: {a: {tasks: {}}}".into(), 3, 1, "graphs", "`graphs` without `select`", "`select:"),
        ("ditto: 1\nloop: x\nselect: b\ngraphs: {a: {tasks: {}}}".into(), 3, 9, "select", "there is no graph `b`", "one of `a`"),
        ("ditto: 1\nloop: x\nselect: a\ngraphs: {}".into(), 4, 9, "graphs", "no graph", "at least one"),
        ("ditto: 1\nloop: x\nselect: a b\ngraphs: {a b: {tasks: {}}}".into(), 4, 10, "graphs[\"a b\"]", "contains ' '", "1 to 128"),
        (with_top("select: a"), 4, 1, "select", "`select` without `graphs`", "`graphs:`"),
        (with_top("description: 5"), 4, 14, "description", "the number 5", "a text"),
        (with_top("done: true\nmaxIterations: 0"), 5, 16, "maxIterations", "the number 0", "from 1 to 1000000"),
        (with_top("done: true\nmaxIterations: 1.5"), 5, 16, "maxIterations", "the number 1.5", "a whole number"),
        (with_top("done: true\nmaxIterations: 1000001"), 5, 16, "maxIterations", "1000001", "from 1 to 1000000"),
        (with_top("maxIterations: 5"), 4, 1, "maxIterations", "without `done`", "`done:"),
        (with_top("maxCalls: -1"), 4, 11, "maxCalls", "the number -1", "from 1 to 1000000"),
        (with_top("concurrency: 0"), 4, 14, "concurrency", "the number 0", "from 1 to 4096"),
        (with_top("deadline: 10"), 4, 11, "deadline", "the number 10", "a duration such as"),
        (with_top("deadline: 1.5h"), 4, 11, "deadline", "\"1.5h\"", "a duration such as"),
        (with_top("deadline: 30m1h"), 4, 11, "deadline", "\"30m1h\"", "a duration such as"),
        (with_top("deadline: 0s"), 4, 11, "deadline", "\"0s\"", "at least 1ms"),
        (with_top("deadline: 99999d"), 4, 11, "deadline", "\"99999d\"", "at most"),
        (with_top("input: 5"), 4, 8, "input", "the number 5", "a JSON Schema"),
        (with_top("input: { type: nothing }"), 4, 16, "input.type", "not a valid JSON Schema", "draft 2020-12"),
        (with_top("input: { properties: { a: { $ref: 'http://x/y' } } }"), 4, 35, "input.properties.a[\"$ref\"]", "a reference to another document", "`#/$defs/name`"),
        (with_top("input: { $schema: 'http://json-schema.org/draft-07/schema#' }"), 4, 19, "input[\"$schema\"]", "draft-07", "2020-12"),
        (with_top("input: { pattern: '(' }"), 4, 19, "input.pattern", "not a valid JSON Schema", "draft 2020-12"),
        (with_top("state: { a: \"${ state.x }\" }"), 4, 17, "state.a", "`state` has no value here", "`input`, `run`"),
        (with_top("output: \"${ inptu.x }\""), 4, 13, "output", "unknown name `inptu`; did you mean `input`?", "one of `input`"),
        (with_top("output: \"a ${ tasks.b } c\""), 4, 15, "output", "unknown task `b`", "a task of this graph"),
        (with_top("output: ${ 1 + }"), 4, 16, "output", "not a valid expression", "a CEL expression"),
        (with_top("output: \"${ 1 + 2\""), 4, 10, "output", "`${` without its `}`", "`$${`"),
        (with_top("output: ${}"), 4, 11, "output", "an empty expression", "between `${` and `}`"),
        (with_top("output: { \"${ input.x }\": 1 }"), 4, 11, "output[\"${ input.x }\"]", "an expression in a key", "a plain key"),
        (with_top("done: state.x == 1"), 4, 7, "done", "where true or false is expected", "`${ … }` that yields true or false"),
        (with_top("done: 1"), 4, 7, "done", "1 where true or false", "`${ … }`"),
        (with_top("done: true\nwait: 10m"), 5, 7, "wait", "the text \"10m\"", "a mapping with `when`"),
        (with_top("done: true\nwait: {}"), 5, 7, "wait", "nothing to wait for", "at least one of `signal`"),
        (with_top("done: true\nwait:\n  signal: ${ input.x }"), 6, 11, "wait.signal", "an expression", "`wait.when`"),
        (with_top("done: true\nwait: { signal: '' }"), 5, 17, "wait.signal", "the text \"\"", "1 to 128"),
        (with_top("done: true\nwait: { for: 5 }"), 5, 14, "wait.for", "the number 5", "a duration such as"),
        (with_top("done: true\nwait: { until: [] }"), 5, 16, "wait.until", "a list", "milliseconds since 1970"),
        (with_top("done: true\nwait: { until: tomorrow }"), 5, 16, "wait.until", "the text \"tomorrow\"", "a time such as"),
        (with_top("done: true\nwait: { until: 1.5 }"), 5, 16, "wait.until", "the number 1.5", "milliseconds since 1970"),
        (with_top("done: true\nwait: { timeout: 5s }"), 5, 9, "wait.timeout", "unknown key `timeout`", "one of `when`"),
        (with_top("wait: { for: 5s }"), 4, 1, "wait", "`wait` without `done`", "`done:"),
        ("ditto: 1\nloop: x\ngraph: {}".into(), 3, 8, "graph", "the key `tasks` is missing", "`tasks:`"),
        ("ditto: 1\nloop: x\ngraph: {tasks: []}".into(), 3, 16, "graph.tasks", "a list", "a mapping from task id"),
        ("ditto: 1\nloop: x\ngraph: {tasks: {}, input: \"${ tasks.a }\"}".into(), 3, 31, "graph.input", "`tasks` has no value here", "`input`, `state`"),
        ("ditto: 1\nloop: x\ngraph: {tasks: {\" \": {node: A.B}}}".into(), 3, 17, "graph.tasks[\" \"]", "is blank", "1 to 512 bytes"),
        ("ditto: 1\nloop: x\ngraph: {tasks: {a: 5}}".into(), 3, 20, "graph.tasks.a", "the number 5", "a mapping with `node`"),
        (with_task("needs: [first]"), 6, 5, "graph.tasks.second", "the key `node` is missing", "`node:"),
        (with_task("node: tool"), 7, 13, "graph.tasks.second.node", "has no dot", "two or more parts"),
        (with_task("node: INTERACTION.ACT.TOOLS\nwith: 1"), 7, 13, "graph.tasks.second.node", "did you mean `INTERACTION.ACT.TOOL`?", "`INTERACTION.OUTPUT`"),
        (with_task("node: MEMORY.GETS"), 7, 13, "graph.tasks.second.node", "unknown node type `MEMORY.GETS`; did you mean `MEMORY.GET`?", "one of `MEMORY.GET`"),
        (with_task("node: CONTEXT.X.Y"), 7, 13, "graph.tasks.second.node", "unknown node type", "one of `CONTEXT.LOAD`"),
        (with_task("node: INFER.REASONING"), 7, 13, "graph.tasks.second.node", "unknown node type", "`INFER.REASONING.SAMPLE`"),
        (with_task("node: A.B\nwhit: 1"), 8, 7, "graph.tasks.second.whit", "unknown key `whit`; did you mean `with`?", "one of `node`"),
        (with_task("node: A.B\nneeds: first"), 8, 14, "graph.tasks.second.needs", "the text \"first\"", "a list of task ids"),
        (with_task("node: A.B\nneeds: [frist]"), 8, 15, "graph.tasks.second.needs[0]", "unknown task `frist`; did you mean `first`?", "declared earlier"),
        (with_task("node: A.B\nneeds: [third]"), 8, 15, "graph.tasks.second.needs[0]", "task `third` is declared later", "`third` above `second`"),
        (with_task("node: A.B\nneeds: [second]"), 8, 15, "graph.tasks.second.needs", "a cycle: `second` needs `second`", "declared earlier"),
        (with_task("node: A.B\nneeds: [5]"), 8, 15, "graph.tasks.second.needs[0]", "the number 5", "a task id"),
        (with_task("node: A.B\nwith: \"${ tasks.first }\""), 8, 17, "graph.tasks.second.with", "task `first` is not among the `needs`", "`needs: [first]`"),
        (with_task("node: A.B\nneeds: [first]\nwith: { a: [1, \"${ tasks.first.x + tasks.third }\"] }"), 9, 42, "graph.tasks.second.with.a[1]", "task `third` is not among", "`needs: [third]`"),
        (with_task("node: A.B\nwhen: 'yes'"), 8, 13, "graph.tasks.second.when", "\"yes\" where true or false", "true or false"),
        (with_task("node: A.B\nfail: 5"), 8, 13, "graph.tasks.second.fail", "5 where a text", "a text"),
        (with_task("node: A.B\nretry: 3"), 8, 14, "graph.tasks.second.retry", "the number 3", "a mapping with `maxAttempts`"),
        (with_task("node: A.B\nretry: { backoff: 1s }"), 8, 14, "graph.tasks.second.retry", "the key `maxAttempts` is missing", "2 to 100"),
        (with_task("node: A.B\nretry: { maxAttempts: 1 }"), 8, 29, "graph.tasks.second.retry.maxAttempts", "the number 1", "from 2 to 100"),
        (with_task("node: A.B\nretry: { maxAttempts: 2, backoff: 5 }"), 8, 41, "graph.tasks.second.retry.backoff", "the number 5", "a duration"),
        (with_task("node: A.B\ntimeout: 25d"), 8, 16, "graph.tasks.second.timeout", "\"25d\"", "at most 2147483647ms"),
        (with_task("node: A.B\npool: a.b"), 8, 13, "graph.tasks.second.pool", "contains '.'", "1 to 63"),
        (with_task("node: A.B\nonUnknown: prak"), 8, 18, "graph.tasks.second.onUnknown", "the text \"prak\"; did you mean `park`?", "one of `park`, `surface`, `fail`"),
        (with_task("node: INTERACTION.ACT.TOOL"), 6, 5, "graph.tasks.second", "INTERACTION.ACT.TOOL without `with`", "`with` that has `call`"),
        (with_task("node: INTERACTION.ACT.TOOL\nwith: { call: { id: a, arguments: {} } }"), 8, 21, "graph.tasks.second.with.call", "the key `name` is missing", "`name: …`"),
        (with_task("node: INTERACTION.ACT.TOOL\nwith: { call: { id: a, name: b, argument: {} } }"), 8, 39, "graph.tasks.second.with.call.argument", "unknown key `argument`; did you mean `arguments`?", "one of `id`"),
        (with_task("node: INTERACTION.ACT.TOOL\nwith: { call: { id: '', name: b, arguments: [] } }"), 8, 27, "graph.tasks.second.with.call.id", "the call id is empty", "1 to 512 bytes"),
        (with_task("node: INTERACTION.ACT.TOOL\nwith: { call: { id: 5, name: '', arguments: {} } }"), 8, 27, "graph.tasks.second.with.call.id", "the number 5", "not blank"),
        (with_task("node: INTERACTION.ACT.TOOL\nwith: { call: { id: a, name: ' ', arguments: {} } }"), 8, 36, "graph.tasks.second.with.call.name", "the text \" \"", "not blank"),
        (with_task("node: INTERACTION.ACT.TOOL\nwith: { call: { id: a, name: b, arguments: [] } }"), 8, 50, "graph.tasks.second.with.call.arguments", "a list", "a mapping, or an expression"),
        (with_task("node: INTERACTION.ACT.MCP\nwith: { operation: invoke, server: s }"), 8, 13, "graph.tasks.second.with", "`operation: invoke` without `call`", "`call: …`"),
        (with_task("node: INTERACTION.ACT.MCP\nwith: { operation: run }"), 8, 26, "graph.tasks.second.with.operation", "the text \"run\"", "one of `discover`, `invoke`"),
        (with_task("node: INTERACTION.OUTPUT\nwith: { message: { role: boss, content: null }, deliveryId: d }"), 8, 32, "graph.tasks.second.with.message.role", "the text \"boss\"", "`assistant`"),
        (with_task("node: INTERACTION.OUTPUT\nwith: { message: { role: user, content: x } }"), 8, 13, "graph.tasks.second.with", "the key `deliveryId` is missing", "`deliveryId: …`"),
        (with_task("node: INTERACTION.OBSERVE\nwith: { results: 1 }"), 8, 15, "graph.tasks.second.with.results", "did you mean `result`?", "one of `result`"),
        (with_task("node: INTERACTION.OBSERVE\nwith: 5"), 8, 13, "graph.tasks.second.with", "the number 5", "a mapping with `result`"),
        ("ditto: 1\nditto: 1\nloop: x\ngraph: {tasks: {}}".into(), 2, 1, "ditto", "a second time", "each key once"),
        ("ditto: 1\n\tloop: x".into(), 1, 8, "", "not valid YAML", "spaces, not tabs"),
    ];
    let mut missing = Vec::new();
    for (text, line, column, path, message, expected) in table {
        let found = problems(&text);
        let matching = found.iter().find(|problem| {
            (problem.line, problem.column, problem.path.as_str()) == (line, column, path)
                && problem.message.contains(message)
                && problem.expected.contains(expected)
        });
        if matching.is_none() {
            let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
            missing.push(format!(
                "{text}\nwanted {line}:{column}: {path}: {message}; {expected}\nfound  {}",
                shown.join("\n       ")
            ));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n\n"));
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_text() {
    let text = "\
ditto: 1
loop: bad name
maxIterations: 0
graph:
  tasks:
    a: { node: A.B, needs: [c] }
    b: { node: A.B, needs: [a] }
    c: { node: A.B, needs: [b], with: \"${ tasks.a }\", timeout: 5 }
    d: { node: MEMORY.GTE, with: \"${ 1 + }\" }
done: \"${ statte.x }\"
";
    let found = problems(text);
    let lines: Vec<_> = found.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [2, 3, 6, 8, 8, 9, 9, 10], "{found:#?}");
    assert_eq!(found[2].message, "a cycle: `a` needs `c` needs `b` needs `a`");
    let shown = render_all(&found, "bad.yaml", text);
    assert!(shown.contains("bad.yaml:10:11: done: unknown name `statte`; did you mean `state`?"), "{shown}");
    assert!(shown.contains(" 10 | done: \"${ statte.x }\"\n    |           ^\n"), "{shown}");
    let json = serde_json::to_value(&found[0]).unwrap();
    assert_eq!(json["line"], 2);
    assert_eq!(json["path"], "loop");
    assert!(json["expected"].as_str().unwrap().starts_with("1 to 128"));
}

#[test]
fn a_flood_of_problems_is_cut() {
    let keys: String = (0..5000).map(|n| format!("key{n}: 1\n")).collect();
    let found = problems(&with_top(&keys));
    assert_eq!(found.len(), 201);
    assert!(found[200].message.contains("not shown"));
}

#[test]
fn many_tasks_compile_and_too_many_do_not() {
    let graph = |count: usize| {
        let tasks: String = (0..count)
            .map(|n| {
                format!(
                    "    t{n}: {{ node: A.B, needs: [{}] }}\n",
                    if n > 0 { format!("t{}", n - 1) } else { String::new() }
                )
            })
            .collect();
        format!("ditto: 1\nloop: x\ngraph:\n  tasks:\n{tasks}")
    };
    assert_eq!(problems(&graph(4096)), []);
    assert!(problems(&graph(4097))[0].message.contains("4097 tasks"));
    let ring = graph(4096).replace("t0: { node: A.B, needs: [] }", "t0: { node: A.B, needs: [t4095] }");
    let found = problems(&ring);
    assert!(found.len() == 1 && found[0].message.starts_with("a cycle: `t0` needs `t4095`"), "{found:?}");
}

#[test]
fn the_revision_names_the_meaning_not_the_writing() {
    let revision = |text: &str| compile(text, "x.yaml").unwrap().revision;
    let one = revision("ditto: 1\nloop: x\ngraph: {tasks: {a: {node: A.B, with: {x: 1, y: 2}}}}\noutput: {a: 1}\n");
    let same = [
        "# note\nloop: 'x'\nditto: 1\noutput:\n  a: 0x1\ngraph:\n  tasks:\n    a:\n      with: {\"x\": 1, 'y': 2}\n      node: A.B\n",
        r#"{"output":{"a":1},"graph":{"tasks":{"a":{"node":"A.B","with":{"x":1,"y":2}}}},"loop":"x","ditto":1}"#,
    ];
    for text in same {
        assert_eq!(revision(text), one, "{text}");
    }
    let other = [
        // the bytes that are sent differ
        "ditto: 1\nloop: x\ngraph: {tasks: {a: {node: A.B, with: {y: 2, x: 1}}}}\noutput: {a: 1}\n",
        "ditto: 1\nloop: x\ngraph: {tasks: {a: {node: A.B, with: {x: 1, y: 2}}}}\noutput: {a: 1.0}\n",
        "ditto: 1\nloop: x2\ngraph: {tasks: {a: {node: A.B, with: {x: 1, y: 2}}}}\noutput: {a: 1}\n",
    ];
    for text in other {
        assert_ne!(revision(text), one, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_compiler_fail(text in "(ditto: 1\nloop: x\n)?[ -~\n\t]{0,200}") {
        for problem in problems(&text) {
            prop_assert!(!problem.message.contains("the compiler failed"), "{problem}");
            let _ = problem.render("x", &text);
        }
    }

    #[test]
    fn no_change_of_a_definition_makes_the_compiler_fail(at in 0usize..900, with in "\\PC{0,3}", cut in 0usize..20) {
        let text = include_str!("../../../examples/branching.yaml");
        let at = text.char_indices().map(|(at, _)| at).nth(at).unwrap_or(0);
        let end = text.char_indices().map(|(at, _)| at).find(|end| *end >= at + cut).unwrap_or(text.len());
        let changed = [&text[..at], &with, &text[end..]].concat();
        for problem in problems(&changed) {
            prop_assert!(!problem.message.contains("the compiler failed"), "{problem}");
            let _ = problem.render("x", &changed);
        }
    }
}
