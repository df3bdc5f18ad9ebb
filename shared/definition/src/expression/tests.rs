//! What expressions yield, refuse and survive.

use std::collections::BTreeMap;

use ditto_contracts::{Json, RunId, TaskId};
use ditto_graph::{RunScope, Scope};
use indexmap::IndexMap;
use proptest::prelude::*;

use super::{Meter, Names, Root, compile, evaluate};

const ROOTS: [Root; 6] = [Root::Input, Root::State, Root::Graph, Root::Tasks, Root::Run, Root::Signal];

/// Evaluates with everything in scope; `Err` carries the message of the compiler or of the evaluation.
fn run(source: &str, input: &Json) -> Result<String, String> {
    let (read, skipped, hidden) =
        (TaskId::new("read").unwrap(), TaskId::new("skipped").unwrap(), TaskId::new("late").unwrap());
    let tasks = [read.clone(), skipped.clone()];
    let declared = [read.clone(), skipped.clone(), hidden];
    let names = Names { roots: &ROOTS, tasks: &tasks, declared: &declared };
    let expr = crate::stack::with_room(|| compile(source, &names)).unwrap().map_err(|problems| {
        problems.iter().map(|p| format!("@{} {}", p.offset, p.message)).collect::<Vec<_>>().join("; ")
    })?;
    let mut outputs = IndexMap::new();
    outputs.insert(read, Json::parse(r#"{"content":"text\n","n":18446744073709551616}"#).unwrap());
    outputs.insert(skipped, Json::null());
    let facts = RunScope::new(RunId::generate(0), 7);
    let state = Json::parse(r#"{"index":3}"#).unwrap();
    let null = Json::null();
    let scope = Scope { input, state: &state, graph: &null, tasks: &outputs, signal: &null, run: &facts };
    let mut meter = Meter::default();
    let value = evaluate(&expr, &scope, &mut meter).and_then(|value| value.to_json(&mut meter));
    value.map(|json| json.as_str().to_owned()).map_err(|fault| fault.message)
}

fn input() -> Json {
    let text = r#"{"big":123456789012345678901234567890,"max":9223372036854775807,"over":9223372036854775808,
        "e":1e2,"half":0.50,"neg":-0,"paths":["a","b\u0041"],"m":{"z":1,"a":2},"t":"x\"y","nul":null,"yes":true}"#;
    Json::parse(text).unwrap()
}

#[test]
fn expressions_yield_what_cel_says() {
    #[rustfmt::skip]
    let table = [
        // a path keeps the bytes
        ("input.big", "123456789012345678901234567890"),
        ("input.e", "1e2"),
        ("input.half", "0.50"),
        ("input.neg", "-0"),
        ("input.paths[1]", r#""b\u0041""#),
        ("input['m']", r#"{"z":1,"a":2}"#),
        ("tasks.read.n", "18446744073709551616"),
        ("tasks['read'].content", r#""text\n""#),
        ("tasks.skipped", "null"),
        // and so does a value that is only passed on
        ("input.yes ? input.big : 0", "123456789012345678901234567890"),
        ("[input.e, input.big]", "[1e2,123456789012345678901234567890]"),
        ("{'b': input.half, 'a': 1}", r#"{"b":0.50,"a":1}"#),
        ("input.paths.map(p, {'p': p, 'i': input.e})[0]", r#"{"p":"a","i":1e2}"#),
        // numbers
        ("state.index + 1", "4"),
        ("input.max", "9223372036854775807"),
        ("input.over - 1u", "9223372036854775807"),
        ("input.over + 1", "9223372036854775809"),
        ("7 / 2", "3"), ("-7 / 2", "-3"), ("-7 % 3", "-1"), ("7 % -3", "1"), ("1.0 / 4.0", "0.25"), ("0.1 + 0.2", "0.30000000000000004"),
        ("1e300 * 10.0", "1e301"), ("3 * 1.5", "4.5"), ("2 + input.half", "2.5"), ("-input.half", "-0.5"), ("--3", "3"),
        ("18446744073709551615u", "18446744073709551615"), ("-9223372036854775808", "-9223372036854775808"),
        ("1 == 1.0", "true"), ("1u == 1", "true"), ("9007199254740993 == 9007199254740992.0", "false"),
        ("9007199254740993 > 9007199254740992.0", "true"), ("-1 < 0u", "true"), ("input.e == 100", "true"),
        // texts
        ("'a' + \"b\"", r#""ab""#), ("'read:' + string(state.index)", r#""read:3""#), ("string(input.half)", r#""0.50""#),
        ("string(input.big)", r#""123456789012345678901234567890""#), ("string(1.0)", r#""1""#), ("string(true)", r#""true""#),
        ("size('äö')", "2"), ("'abc'.size()", "3"), ("'a' < 'b'", "true"), ("input.t", r#""x\"y""#), ("input.t + 'z'", r#""x\"yz""#),
        ("'a-b'.split('-')", r#"["a","b"]"#), ("['a','b'].join(', ')", r#""a, b""#), ("' x '.trim()", r#""x""#),
        ("'Ab'.lowerAscii() + 'Ab'.upperAscii()", r#""abAB""#), ("'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')", "true"),
        ("int('42') + int(4.9) + int(1u)", "47"), ("uint(3)", "3"), ("double(3)", "3.0"), ("double(9007199254740993)", "9007199254740992.0"), ("double(input.big)", "1.2345678901234568e29"), ("double('1.5')", "1.5"), ("bool('true')", "true"),
        ("json({'a': [1, null]})", r#""{\"a\":[1,null]}""#), ("json(input.m)", r#""{\"z\":1,\"a\":2}""#),
        ("sha256('')", r#""e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855""#),
        ("r'\\d' + '''it's'''", r#""\\dit's""#), ("'\\u00e4'", r#""ä""#),
        // lists, maps, logic
        ("size(input.paths)", "2"), ("size(input.m)", "2"), ("'a' in input.paths", "true"), ("'bA' in input.paths", "true"), ("'z' in input.m", "true"), ("3 in [1, 2]", "false"),
        ("[1] + [2, 3]", "[1,2,3]"), ("[1, 2.0] == [1.0, 2]", "true"), ("input.m == {'a': 2, 'z': 1}", "true"), ("input.m == {'a': 2}", "false"),
        ("null == input.nul", "true"), ("1 == '1'", "false"), ("!input.yes", "false"),
        ("has(input.m) && !has(input.q)", "true"), ("has(tasks.read) && !has(tasks.skipped)", "true"), ("has(tasks.skipped.content)", "false"),
        ("input.paths.all(p, size(p) > 0)", "true"), ("input.paths.exists(p, p == 'a')", "true"), ("input.paths.exists_one(p, p == 'a')", "true"),
        ("input.paths.filter(p, p != 'a')", r#"["b\u0041"]"#), ("[1, 2, 3].map(x, x > 1, x * 10)", "[20,30]"), ("input.m.map(k, k)", r#"["z","a"]"#),
        ("[1, 2].map(x, [x, 3].map(y, x * y))", "[[1,3],[4,6]]"), ("[[1]].map(input, input[0])", "[1]"),
        ("[1, 0].exists(x, 1 / x == 1)", "true"), ("[0, 1].exists(x, 1 / x == 1)", "true"), ("[0, 2].all(x, 1 / x == 5)", "false"),
        ("false && (1 / 0 == 1)", "false"), ("(1 / 0 == 1) && false", "false"), ("(1 / 0 == 1) || true", "true"),
        ("run.iteration", "7"), ("size(run.id)", "26"), ("size(tasks)", "2"), ("signal == null", "true"),
        ("true ? 1 : 1 / 0", "1"), ("input.paths[0] == 'a' ? 'x' : 'y'", r#""x""#), ("1 + 2 // three", "3"),
    ];
    for (source, value) in table {
        assert_eq!(run(source, &input()).as_deref(), Ok(value), "{source}");
    }
}

#[test]
fn what_has_no_value_says_why() {
    #[rustfmt::skip]
    let table = [
        ("input.q", "there is no key `q`"), ("input.m.q.r", "there is no key `q`"), ("input.nul.x", "null has no key `x`"),
        ("input.t.x", "a text has no key `x`"), ("tasks.skipped.content", "null has no key `content`"),
        ("input.paths[2]", "index 2 is out of range: the list has 2 elements"), ("input.paths[-1]", "index -1 is out of range"),
        ("input.paths['0']", "a list is indexed by an integer"), ("input.m[0]", "a map is indexed by a text"), ("1[0]", "cannot be indexed"),
        ("1 / 0", "division by zero"), ("1 % 0", "division by zero"), ("input.max + 1", "overflows 64 bits"), ("0u - 1u", "overflows 64 bits"),
        ("-9223372036854775807 - 2", "overflows 64 bits"), ("-(-9223372036854775808)", "overflows 64 bits"), ("-9223372036854775808 / -1", "overflows 64 bits"),
        ("-9223372036854775808 % -1 + 9223372036854775807 + 1", "overflows 64 bits"),
        ("input.big + 1", "can only be passed on"), ("input.big == 1", "can only be passed on"), ("input.big < 1.0", "can only be passed on"),
        ("1.5 + 9007199254740993", "no exact floating-point value"), ("double('x')", "cannot read"),
        ("1.0 / 0.0", "not a JSON number"), ("1e308 * 10.0", "not a JSON number"), ("1.5 % 1.0", "integers only"),
        ("1 + 'a'", "`+` does not apply to an integer and a text"), ("!1", "needs a boolean"), ("1 < 'a'", "does not compare"), ("1 ? 2 : 3", "needs a boolean"),
        ("[1] < [2]", "does not compare"), ("1 in 2", "looks into a list or a map"), ("size(1)", "has no size"), ("-'a'", "does not apply to a text"),
        ("1.map(x, x)", "only a list or a map"), ("[1].all(x, x)", "`all` needs a boolean"), ("{1: 2}", "the keys of a map are texts"), ("{'a': 1, 'a': 2}", "is here twice"),
        ("int('x')", "cannot read \"x\""), ("int(1e30)", "does not fit"), ("uint(-1)", "does not fit"), ("int(input.big)", "does not fit"), ("string([])", "does not apply to a list"),
        ("'a'.split('')", "separator"), ("[1].join('')", "list of texts"), ("true && 1", "needs a boolean"), ("(1 / 0 == 1) || false", "division by zero"),
        // seen before it runs
        ("inputs.x", "@0 unknown name `inputs`; did you mean `input`?"), ("input.x + foo", "@10 unknown name `foo`"),
        ("tasks.late.x", "@0 task `late` is not among the `needs`"), ("tasks.raed", "@0 unknown task `raed`; did you mean `read`?"), ("has(tasks.late)", "is not among the `needs`"),
        ("run.attempt", "`run` has no key `attempt`"), ("sise(input)", "unknown function `sise`; did you mean `size`?"), ("input.matches('x')", "unknown function `matches`"),
        ("size(1, 2)", "`size` with 2 arguments"), ("input.map(x)", "`map` with 1 arguments"), ("input.map(1, x)", "not a name"), ("has(input)", "`has` of something that is no key"),
        ("b'x'", "a bytes literal"), ("a.B{x: 1}", "a message"), ("1 +", "not a valid expression"), ("", "an empty expression"), ("input..x", "not a valid expression"),
        ("[1].map(a, [1].map(b, [1].map(c, [1].map(d, d))))", "`map` inside 3 others"), ("9223372036854775808", "invalid int literal"),
    ];
    for (source, fragment) in table {
        let found = run(source, &input());
        assert!(found.as_ref().is_err_and(|message| message.contains(fragment)), "{source}: {found:?}");
    }
}

#[test]
fn work_and_size_are_bounded() {
    let list = format!("{{\"l\":[{}1]}}", "1,".repeat(20_000));
    let input = Json::parse(list).unwrap();
    #[rustfmt::skip]
    let table = [
        ("input.l.map(a, input.l.map(b, a * b))", "more than"),
        ("input.l.exists(a, input.l.exists(b, a > b))", "more than"),
        ("input.l.all(a, false || input.l.all(b, b == 1))", "more than"),
        ("input.l.map(a, input)", "more than"),
        ("input.l.map(a, input.l)", "more than"),
        ("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24].map(a, input.l.map(b, 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'))", "more than"),
    ];
    for (source, fragment) in table {
        let found = run(source, &input);
        assert!(
            found.as_ref().is_err_and(|message| message.contains(fragment)),
            "{source}: {:?}",
            found.map(|t| t.len())
        );
    }
    assert!(run("input.l[19999] + size(input.l)", &input).is_ok());
}

#[test]
fn a_large_input_costs_nothing_where_it_is_not_read() {
    let (input, null, tasks) = (Json::string(&"x".repeat(6 << 20)), Json::null(), IndexMap::new());
    let state = Json::parse(r#"{"index":3}"#).unwrap();
    let run = RunScope::new(RunId::generate(0), 0);
    let scope = Scope { input: &input, state: &state, graph: &null, tasks: &tasks, signal: &null, run: &run };
    let names = Names { roots: &ROOTS, tasks: &[], declared: &[] };
    for (source, most) in [("state.index + 1", 8), ("[input, state][1].index", 8), ("size(input) > 5", 30_000)] {
        let expr = crate::stack::with_room(|| compile(source, &names)).unwrap().unwrap();
        let mut meter = Meter::default();
        evaluate(&expr, &scope, &mut meter).unwrap();
        assert!(meter.steps() <= most, "{source}: {}", meter.steps());
    }
}

#[test]
fn deep_and_long_texts_are_refused_without_exhausting_the_stack() {
    let deep: BTreeMap<&str, String> = [
        ("brackets", format!("{}1{}", "(".repeat(2000), ")".repeat(2000))),
        ("some brackets", format!("{}1{}", "(".repeat(120), ")".repeat(120))),
        ("lists", format!("{}1{}", "[".repeat(120), "]".repeat(120))),
        ("open", "[".repeat(250)),
        ("minus", format!("{}1", "-".repeat(250))),
        ("not", format!("{}true", "!".repeat(250))),
        ("sum", format!("1{}", "+1".repeat(250))),
        ("fields", format!("input{}", ".a".repeat(250))),
        ("indexes", format!("input{}", "[0]".repeat(250))),
        ("calls", format!("{}1{}", "size(".repeat(120), ")".repeat(120))),
        ("conditions", format!("{}1", "true ? 1 : ".repeat(200))),
        ("and", format!("true{}", " && true".repeat(120))),
        ("relations", format!("1{}", " < 1".repeat(250))),
        ("words", "in ".repeat(1300)),
        ("idents", "a ".repeat(2000)),
        ("long", "1".repeat(5000)),
    ]
    .into();
    for (name, source) in deep {
        let _ = run(&source, &Json::null()).inspect(|value| assert!(value.len() < 10, "{name}"));
    }
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "input",
        "state",
        "tasks",
        "read",
        "run",
        "signal",
        "x",
        ".",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ",",
        ":",
        "?",
        "+",
        "-",
        "*",
        "/",
        "%",
        "!",
        "&&",
        "||",
        "==",
        "!=",
        "<",
        ">",
        "in",
        "1",
        "0",
        "1.5",
        "2u",
        "'a'",
        "\"b\"",
        "r'",
        "'",
        "null",
        "true",
        "size",
        "map",
        "all",
        "has",
        "filter",
        "exists",
        "string",
        "int",
        " ",
        "\\",
        "é",
        "0x",
        "1e",
        "b'",
        "`",
        "#",
        "//",
        "\n",
        "paths",
        "m",
        "big",
        "9223372036854775807",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_it_panic(source in "\\PC{0,80}") {
        let _ = run(&source, &input());
    }

    #[test]
    fn no_sequence_of_tokens_makes_it_panic(tokens in prop::collection::vec(token(), 0..40)) {
        let _ = run(&tokens.concat(), &input());
    }

    #[test]
    fn arithmetic_never_panics(a in any::<i64>(), b in any::<i64>(), op in prop::sample::select(vec!["+", "-", "*", "/", "%", "<", "=="])) {
        let text = format!("{{\"a\":{a},\"b\":{b}}}");
        let found = run(&format!("input.a {op} input.b"), &Json::parse(text).unwrap());
        if op == "+" {
            prop_assert_eq!(found.ok(), a.checked_add(b).map(|sum| sum.to_string()));
        }
    }

    #[test]
    fn numbers_pass_through_unchanged(n in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?") {
        let input = Json::parse(format!("{{\"n\":{n},\"l\":[{n}]}}")).unwrap();
        for (source, text) in [
            ("input.n", n.clone()),
            ("[input.n, input.l[0]]", format!("[{n},{n}]")),
            ("{'n': input.n}", format!("{{\"n\":{n}}}")),
            ("true ? input.n : 0", n.clone()),
            ("input.l.map(x, x)", format!("[{n}]")),
            ("string(input.n)", format!("\"{n}\"")),
            ("json(input.l)", format!("\"[{n}]\"")),
        ] {
            prop_assert_eq!(run(source, &input), Ok(text), "{}", source);
        }
    }

    #[test]
    fn whole_numbers_are_computed_exactly_or_not_at_all(n in "-?[1-9][0-9]{0,24}") {
        let input = Json::parse(format!("{{\"n\":{n}}}")).unwrap();
        let exact = n.parse::<i128>().unwrap() + 1;
        // A double that holds every digit is computed with as a double.
        if let Ok(sum) = run("input.n + 1", &input).and_then(|sum| sum.parse::<i128>().map_err(|error| error.to_string())) {
            prop_assert_eq!(sum, exact);
        } else if n.len() < 19 {
            prop_assert!(false, "{} has no sum", n);
        }
    }
}
