//! The figures as a table for people.

use std::fmt::Write as _;

use super::{
    report::{Cost, Report, Variant},
    stat::Stat,
    workloads::name,
};

/// The whole report.
pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        // writing to a String cannot fail
        out,
        "ditto {}{} · {} cores {} · {} MiB · Linux {} · {} on {} · fdatasync p50 {} µs, p99 {} µs",
        report.version,
        if report.optimised { "" } else { " NOT OPTIMISED: no figures for speed" },
        machine.cores,
        machine.processor,
        machine.memory_mib,
        machine.kernel,
        machine.dir,
        machine.filesystem,
        machine.fdatasync_p50_us,
        machine.fdatasync_p99_us,
    );
    if report.quick {
        out.push_str("quick: shows that everything runs, and nothing about speed\n");
    }
    let _ = writeln!(
        out,
        "median (min–max) of {} repetitions (W1: {}) after one warm-up",
        report.sizes.repetitions, report.sizes.w1_repetitions
    );
    for variant in &report.variants {
        out.push('\n');
        one(&mut out, variant);
    }
    out
}

fn one(out: &mut String, variant: &Variant) {
    let settings: Vec<String> = variant.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let _ = writeln!(out, "{} · class {}\n  {}", name(variant.mode), variant.class, settings.join(" "));
    let mut row = |head: &str, text: String| {
        let _ = writeln!(out, "  {head:<22} {text}");
    };
    if let Some(w1) = &variant.w1 {
        row("W1 ms/step", format!("p50 {}   p99 {}", spread(w1.run_p50_ms), spread(w1.run_p99_ms)));
        row("   all gaps", format!("p50 {}   p99 {}", number(w1.gap_p50_ms), number(w1.gap_p99_ms)));
        cost(&mut row, &w1.cost);
    }
    if let Some(w2) = &variant.w2 {
        row("W2 steps/s", spread(w2.steps_per_second));
        cost(&mut row, &w2.cost);
    }
    if let Some(w3) = &variant.w3 {
        row("W3 steps/s", spread(w3.steps_per_second));
        cost(&mut row, &w3.cost);
    }
    if let Some(w4) = &variant.w4 {
        row("W4 runs/s", spread(w4.runs_per_second));
        row("   submit to end ms", format!("p50 {}   p99 {}", spread(w4.end_p50_ms), spread(w4.end_p99_ms)));
        cost(&mut row, &w4.cost);
    }
    for (role, w5) in variant.w5.iter().flatten() {
        let text = format!(
            "{} s to the last end   {} effects beyond one per step   killed at {}",
            spread(w5.recovery_s),
            spread(w5.repeats),
            spread(w5.killed_at)
        );
        row(&format!("W5 kill {role}"), text);
    }
    if let Some(w6) = &variant.w6 {
        let mib = |kib: Option<u64>| kib.map_or("–".to_owned(), |kib| format!("{:.1}", kib as f64 / 1024.0));
        let each: Vec<String> = w6.pss_kib.iter().map(|(role, kib)| format!("{role} {}", mib(*kib))).collect();
        row("W6 idle PSS MiB", format!("{}   ({})", mib(w6.pss_kib_total), each.join(", ")));
        let each: Vec<String> = w6.cpu_percent.iter().map(|(role, share)| format!("{role} {share:.2}")).collect();
        row("   idle CPU % of a core", format!("{:.2}   ({})", w6.cpu_percent_total, each.join(", ")));
    }
}

fn cost(row: &mut impl FnMut(&str, String), cost: &Cost) {
    let each: Vec<String> =
        cost.cpu_s_per_1000.iter().map(|(role, stat)| format!("{role} {}", number(stat.median))).collect();
    let client = cost.client_cpu_s_per_1000.map_or(0.0, |stat| stat.median);
    row(
        "   CPU s per 1000",
        format!(
            "{}   ({}; client, not counted, {})",
            spread(cost.cpu_s_per_1000_total),
            each.join(", "),
            number(client)
        ),
    );
    let median = |stat: &Option<Stat>| stat.map_or("–".to_owned(), |stat| number(stat.median));
    let each: Vec<String> =
        cost.written_kib_per_step.iter().map(|(role, stat)| format!("{role} {}", median(stat))).collect();
    let (flushes, others) = (median(&cost.flushes_per_step), median(&cost.others_cores));
    row(
        "   per step",
        format!("KiB written: {}   flushes: {flushes}   others kept {others} cores busy", each.join(", ")),
    );
}

fn spread(stat: Option<Stat>) -> String {
    match stat {
        None => "–".into(),
        Some(stat) if stat.min == stat.max => number(stat.median),
        Some(stat) => format!("{} ({}–{})", number(stat.median), number(stat.min), number(stat.max)),
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}
