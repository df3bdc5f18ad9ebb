//! What JSON is accepted, kept and refused.

use super::*;

#[test]
fn a_value_keeps_its_full_depth_inside_a_message() {
    let message = |depth: usize| format!("{{\"output\":{}}}", nested(depth));
    assert!(Json::parse(message(JSON_DEPTH_MAX)).is_err());
    let json = Json::parse_around(message(JSON_DEPTH_MAX), 1).unwrap();
    assert_eq!(json.field("output").unwrap().as_str(), nested(JSON_DEPTH_MAX));
    assert!(Json::parse_around(message(JSON_DEPTH_MAX + 1), 1).is_err());
}

#[test]
fn what_has_another_shape_is_named() {
    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        number: u8,
        value: Json,
    }
    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only read")]
    struct Outer {
        items: Vec<Inner>,
    }
    let json = Json::parse(r#"{"items":[{"number":1,"value":1e400},{"number":"x","value":{}}]}"#).unwrap();
    let error = json.to::<Outer>().unwrap_err().to_string();
    assert!(error.starts_with("$.items[1].number: invalid type: string"), "{error}");
    let json = Json::parse("[]").unwrap();
    assert!(!json.to::<Inner>().unwrap_err().to_string().starts_with("$."));
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

#[test]
fn accepted_values_keep_their_bytes() {
    for text in [
        "0",
        "-0",
        "1e400",
        "1e2",
        "9007199254740993",
        "18446744073709551616",
        "0.10",
        "\"\\u0000\"",
        "\"🛡\"",
        "\"\\ud83d\\udee1\"",
        "{\"b\":1,\"a\":[ 1 , 2 ]}",
        "[]",
        "{}",
        "null",
        "true",
        "{\"$serde_json::private::Number\":\"1\"}",
    ] {
        assert_eq!(Json::parse(text).map(|j| j.to_string()), Ok(text.into()));
    }
    assert!(Json::parse(nested(128)).is_ok());
    assert_eq!(Json::parse(" 1 \n").unwrap().as_str(), "1");
}

#[test]
fn refused_values_name_reason_and_path() {
    let table = [
        ("", "unexpected end at $"),
        ("{} {}", "unexpected text after the value"),
        ("\u{feff}1", "expected a JSON value"),
        ("[1,]", "expected a JSON value at $[1]"),
        ("{\"a\":1,\"\\u0061\":2}", "duplicate key at $.a"),
        ("{\"x\":{\"y\":[0,\"\\ud800\"]}}", "lone surrogate in a string at $.x.y[1]"),
        ("\"\\udc00\"", "lone surrogate"),
        ("\"\\ud800x\"", "lone surrogate"),
        ("\"a\nb\"", "control character"),
        ("01", "unexpected text"),
        ("1.", "expected a digit"),
        ("{a:1}", "expected a key"),
        ("tru", "expected a JSON value"),
        ("\"\\u12G4\"", "invalid escape"),
        ("\"\\u+123\"", "invalid escape"),
    ];
    for (text, fragment) in table {
        let error = Json::parse(text).unwrap_err().to_string();
        assert!(error.contains(fragment), "{text}: {error}");
    }
    assert!(Json::parse(nested(129)).unwrap_err().reason.contains("deeper than 128"));
    assert!(Json::parse(nested(10_000)).is_err());
    assert_eq!(Json::parse(vec![b'"', 0xff, b'"']).unwrap_err().offset, 1);
    let many: String = (0..40).map(|n| format!("\"k{n}\":{n},")).collect();
    assert!(Json::parse(format!("{{{many}\"k7\":0}}")).unwrap_err().reason.contains("duplicate key"));
}

#[test]
fn parts_are_slices_of_the_same_text() {
    let json = Json::parse(r#"{ "a" : [ 1e2, {"x":"]}"} , "s" ], "n":null, "q\"" : -0 }"#).unwrap();
    assert_eq!(json.field("a").unwrap().index(0).unwrap().as_str(), "1e2");
    assert_eq!(json.field("a").unwrap().index(1).unwrap().field("x").unwrap().to_text().unwrap(), "]}");
    assert_eq!(json.field("a").unwrap().elements().count(), 3);
    assert_eq!(json.field("q\"").unwrap().as_str(), "-0");
    assert!(json.field("n").unwrap().is_null());
    assert!(json.field("zz").is_none() && json.index(0).is_none());
    assert_eq!(Json::parse("[]").unwrap().elements().count(), 0);
}

#[test]
fn a_writer_puts_values_together() {
    let mut writer = JsonWriter::new();
    writer.begin_object().key("a").begin_array().integer(1).string("x\"\u{1}").end();
    writer.key("b").value(&Json::parse("1e2").unwrap()).key("c").begin_object();
    assert_eq!(writer.finish().as_str(), r#"{"a":[1,"x\"\u0001"],"b":1e2,"c":{}}"#);
}

#[test]
fn values_travel_inside_our_types_unchanged() {
    #[derive(Serialize, Deserialize)]
    struct Holder {
        value: Json,
    }
    let text = r#"{"value":{"b":1e2,"a":18446744073709551616}}"#;
    let holder: Holder = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&holder).unwrap(), text);
}
