//! The register (`tests/cases.md`) names every case once, and every test it names exists.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

/// The numbers of the cases by section. They are stable references and not consecutive.
const NUMBERED: [(u32, &str); 15] = [
    (1, "1 2 3 4 6 7 8 9 10 12 13 14 15 16 18 19 20 21 22 24"),
    (2, "25 26 27 28 30 31 32 33 34 36 37 38 39 40 42 43 44 45 46 48 49 50 51 52 54 55 56 57 58 60 61 62 63 64"),
    (3, "66 67 68 69 70 72 73 74 75 76 78 79 80 81 82 84 85 86 87 88 90 91 92"),
    (4, "93 94 96 97 98 99 100 102 103 104 105 106 108 109 110 111 112 114 115 116 117 118 120 121 122 123 124"),
    (5, "126 127 128 129 130 132 133 134 135 136 138 139 140 141 142 144 145 146 147 148 150 151 152 153 154"),
    (6, "156 157 158 159 160 162 163 164 165 166 168 169 170 171 172 174 175 176 177 178 180 181 182 183 184"),
    (7, "186 187 188 189 190 192 193 194 195 196 198 199 200 201 202 204 205 206 207 208 210 211 212 213 214 216"),
    (
        8,
        "217 218 219 220 222 223 224 225 226 228 229 230 231 232 234 235 236 237 238 240 241 242 243 244 246 247 248 249 250",
    ),
    (9, "252 253 254 255 256 258 259 260 261 262 264 265 266 267 268 270 271 272 273 274 276 277 278"),
    (10, "279 280 282 283 284 285 286 288 289 290 291 292 294 295 296 297 298"),
    (11, "300 301 302 303 304 306 307 308 309 310 312"),
    (12, "313 314 315 316 318 319 320 321 322 324"),
    (13, "325 326 327 328 330 331 332 333 334 336 337 338 339 340 342 343 344 345"),
    (14, "346 348 349 350 351 352 354 355 356 357 358 360 361 362 363 364 366 367 368 369"),
    (15, "370 372 373 374 375 376 378 379 380 381"),
];

/// The cases that are counted by a letter: section, letter, last number.
const LETTERED: [(u32, &str, u32); 4] = [(16, "TC", 47), (17, "RA", 39), (18, "D", 9), (19, "P", 30)];

/// What an open case may wait for: the beginning of its reason.
const PARTS: [&str; 10] =
    ["approval", "command tools", "web search", "MCP", "CONTEXT", "MEMORY", "INFER", "patterns", "protocol", "fork"];

struct Row<'a> {
    case: &'a str,
    state: &'a str,
    /// Names in backticks.
    tests: Vec<&'a str>,
    /// What is said besides.
    reason: String,
}

/// The rows of the register with the number of their section.
fn rows(register: &str) -> Vec<(u32, Row<'_>)> {
    let mut section = 0;
    let mut rows = Vec::new();
    for line in register.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section =
                title.split('.').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        }
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else { continue };
        let cells: Vec<&str> = cells.splitn(3, " | ").collect();
        let [case, state, text] = cells[..] else { panic!("three cells: {line}") };
        if case == "#" {
            continue;
        }
        let parts: Vec<&str> = text.split('`').collect();
        assert!(parts.len() % 2 == 1, "backticks in pairs: {line}");
        let tests = parts.iter().copied().skip(1).step_by(2).collect();
        let reason = parts.iter().copied().step_by(2).collect::<String>();
        let reason = reason.trim_matches([',', ':', ' ']).to_owned();
        rows.push((section, Row { case, state, tests, reason }));
    }
    rows
}

fn register() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("cases.md")).unwrap()
}

#[test]
fn every_case_is_listed_once_in_its_section() {
    let mut wanted: Vec<(u32, String)> = Vec::new();
    for (section, numbers) in NUMBERED {
        wanted.extend(numbers.split(' ').map(|number| (section, number.to_owned())));
    }
    for (section, letter, last) in LETTERED {
        wanted.extend((1..=last).map(|number| (section, format!("{letter}{number}"))));
    }
    let register = register();
    let listed: Vec<(u32, String)> =
        rows(&register).iter().map(|(section, row)| (*section, row.case.to_owned())).collect();
    assert_eq!(listed, wanted);
}

#[test]
fn every_line_says_what_its_state_asks_for() {
    let register = register();
    for (_, row) in rows(&register) {
        let (tests, reason) = (!row.tests.is_empty(), !row.reason.is_empty());
        let complete = match row.state {
            "holds" => tests,
            "adapted" => tests && reason,
            "dropped" => reason && !tests,
            "open" => PARTS.iter().any(|part| row.reason.starts_with(part)),
            other => panic!("{}: unknown state {other}", row.case),
        };
        assert!(complete, "{} {}: {} {:?}", row.case, row.state, row.reason, row.tests);
    }
}

#[test]
fn every_test_that_is_named_exists() {
    let mut functions = HashSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for part in ["shared", "services", "tests"] {
        collect(&root.join(part), &mut functions);
    }
    let register = register();
    let mut missing = BTreeMap::new();
    for (_, row) in rows(&register) {
        for test in row.tests {
            if !functions.contains(test) {
                missing.insert(row.case.to_owned(), test);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The names of all functions in the Rust files below a directory.
fn collect(directory: &Path, functions: &mut HashSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, functions);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for after in text.split("fn ").skip(1) {
                let name: String = after.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                functions.insert(name);
            }
        }
    }
}
