//! Runs the workloads and puts the figures together.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    effects::{LineCount, Observed},
    facts,
    plan::{Class, Mode, Plan, Sizes, Workload},
    report::{Cost, Idle, Latency, Recovery, Report, SmallRuns, Throughput, Variant},
    stat::{Stat, percentile},
    system::{self, Client, Load, Sample, System},
};
use crate::{context::Context, exit::Failure};

/// How long W5 waits for the effects before the kill.
const EFFECTS_WITHIN: Duration = Duration::from_secs(120);

/// Measures everything the plan names.
pub(super) async fn all(plan: &Plan, context: &Context) -> Result<Report, Failure> {
    let dir = system::folder(plan.dir.as_deref())?;
    let machine = facts::machine(dir.path())?;
    let mut variants = Vec::new();
    for mode in &plan.modes {
        for class in &plan.classes {
            variants.push(variant(plan, *mode, *class, context).await?);
        }
    }
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        optimised: !cfg!(debug_assertions),
        quick: plan.quick,
        sizes: plan.sizes,
        machine,
        variants,
    })
}

async fn variant(plan: &Plan, mode: Mode, class: Class, context: &Context) -> Result<Variant, Failure> {
    context.note(&format!("{} {class}: starting", name(mode)));
    let system = System::start(plan, mode).await?;
    let client = Client::start(&system).await?;
    let mut bench = Bench { system, client, class, sizes: plan.sizes, tags: 0 };
    let mut variant = Variant {
        mode,
        class,
        settings: bench.system.facts.clone(),
        w1: None,
        w2: None,
        w3: None,
        w4: None,
        w5: None,
        w6: None,
    };
    for workload in &plan.workloads {
        context.note(&format!("{} {class}: {workload:?}", name(mode)));
        let measured = bench.measure(*workload, &mut variant).await;
        measured.map_err(|failure| {
            let message = format!("{} {class} {workload:?}: {failure}{}", name(mode), bench.system.logs());
            Failure { message, ..failure }
        })?;
    }
    Ok(variant)
}

/// What people call a mode.
pub(super) const fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Embedded => "embedded",
        Mode::Fleet => "fleet",
    }
}

struct Bench {
    system: System,
    client: Client,
    class: Class,
    sizes: Sizes,
    tags: u32,
}

/// The shape of one load.
#[derive(Clone, Copy)]
struct Shape {
    kind: &'static str,
    runs: u32,
    conc: u32,
    n: u32,
}

impl Shape {
    const fn steps(self) -> u32 {
        self.runs * self.n
    }
}

/// One load that was run.
struct Rep {
    load: Load,
    observed: Observed,
    before: Sample,
    after: Sample,
    steps: u32,
}

impl Bench {
    async fn measure(&mut self, workload: Workload, variant: &mut Variant) -> Result<(), Failure> {
        let sizes = self.sizes;
        let w2 = Shape { kind: "chain", runs: sizes.w2_runs, conc: sizes.w2_runs, n: sizes.w2_steps };
        match workload {
            Workload::W1 => {
                let shape = Shape { kind: "chain", runs: 1, conc: 1, n: sizes.w1_steps };
                variant.w1 = Some(latency(&self.repeat(shape, sizes.w1_repetitions).await?));
            }
            Workload::W2 => variant.w2 = Some(throughput(&self.repeat(w2, sizes.repetitions).await?)),
            Workload::W3 => {
                let shape = Shape { kind: "fanout", runs: 1, conc: 1, n: sizes.w3_steps };
                variant.w3 = Some(throughput(&self.repeat(shape, sizes.repetitions).await?));
            }
            Workload::W4 => {
                let shape = Shape { kind: "chain", runs: sizes.w4_runs, conc: sizes.w4_in_flight, n: 1 };
                variant.w4 = Some(small_runs(&self.repeat(shape, sizes.repetitions).await?));
            }
            Workload::W5 => {
                let mut killed = BTreeMap::new();
                for role in self.system.roles().collect::<Vec<_>>() {
                    killed.insert(role, self.recovery(w2, role).await?);
                }
                variant.w5 = Some(killed);
            }
            Workload::W6 => variant.w6 = Some(self.idle().await?),
        }
        Ok(())
    }

    fn tag(&mut self) -> String {
        self.tags += 1;
        format!("T{}", self.tags)
    }

    fn request(&self, shape: Shape, tag: &str) -> serde_json::Value {
        json!({
            "op": "run", "kind": shape.kind, "runs": shape.runs, "conc": shape.conc, "n": shape.n,
            "tag": tag, "class": self.class,
        })
    }

    /// One warm-up, then the repetitions.
    async fn repeat(&mut self, shape: Shape, repetitions: u32) -> Result<Vec<Rep>, Failure> {
        self.once(shape).await?;
        let mut reps = Vec::new();
        for _ in 0..repetitions {
            reps.push(self.once(shape).await?);
        }
        Ok(reps)
    }

    async fn once(&mut self, shape: Shape) -> Result<Rep, Failure> {
        let tag = self.tag();
        let before = self.system.sample(&self.client);
        self.client.ask(&self.request(shape, &tag)).await?;
        let load = self.client.answer().await?;
        let after = self.system.sample(&self.client);
        let observed = self.observed(&tag, shape)?;
        if observed.repeats() > 0 {
            // Nothing failed here, so even class R has no reason.
            return Err(Failure::internal(format!("{} effects beyond one per step", observed.repeats())));
        }
        Ok(Rep { load, observed, before, after, steps: shape.steps() })
    }

    /// Reads what happened, and insists that every step did.
    fn observed(&self, tag: &str, shape: Shape) -> Result<Observed, Failure> {
        let observed = Observed::read(self.system.effects(), tag)
            .map_err(|error| Failure::internal(format!("the file of the effects: {error}")))?;
        let (found, expected) = (observed.distinct(), shape.steps() as usize);
        if found != expected {
            return Err(Failure::internal(format!(
                "{found} of {expected} steps had an effect, yet all runs completed"
            )));
        }
        Ok(observed)
    }

    /// W5 for one process.
    async fn recovery(&mut self, shape: Shape, role: &'static str) -> Result<Recovery, Failure> {
        let (mut recoveries, mut repeats, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.sizes.repetitions {
            let tag = self.tag();
            let unreadable = |error: std::io::Error| Failure::internal(format!("the file of the effects: {error}"));
            let mut lines = LineCount::from_end(self.system.effects()).map_err(unreadable)?;
            self.client.ask(&self.request(shape, &tag)).await?;
            let (deadline, enough) = (Instant::now() + EFFECTS_WITHIN, shape.steps() as usize * 2 / 5);
            let there = loop {
                let there = lines.count().map_err(unreadable)?;
                if there >= enough {
                    break there;
                }
                if Instant::now() > deadline {
                    return Err(Failure::internal(format!("only {there} effects within {EFFECTS_WITHIN:?}")));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            let restarted_ns = self.system.kill_and_restart(role).await?;
            self.client.answer().await?;
            let observed = self.observed(&tag, shape)?;
            let ended_ns = observed.last_done_ns().unwrap_or(restarted_ns);
            recoveries.push(ended_ns.saturating_sub(restarted_ns) as f64 / 1e9);
            repeats.push(observed.repeats() as f64);
            shares.push(there as f64 / f64::from(shape.steps()));
        }
        Ok(Recovery { recovery_s: Stat::of(&recoveries), repeats: Stat::of(&repeats), killed_at: Stat::of(&shares) })
    }

    async fn idle(&mut self) -> Result<Idle, Failure> {
        let shape = Shape { kind: "chain", runs: self.sizes.w6_runs, conc: 64.min(self.sizes.w6_runs), n: 1 };
        self.once(shape).await?;
        tokio::time::sleep(self.sizes.w6_pause()).await;
        let (before, start) = (self.system.sample(&self.client), Instant::now());
        tokio::time::sleep(self.sizes.w6_window()).await;
        let (after, window_s) = (self.system.sample(&self.client), start.elapsed().as_secs_f64());
        let pss_kib = self.system.pss_kib();
        let cpu_percent: BTreeMap<_, _> = after
            .usage
            .iter()
            .filter_map(|(role, usage)| Some((*role, (usage.cpu_s - before.usage.get(role)?.cpu_s) / window_s * 100.0)))
            .collect();
        Ok(Idle {
            runs: shape.runs,
            pss_kib_total: pss_kib.values().copied().sum(),
            pss_kib,
            cpu_percent_total: cpu_percent.values().sum(),
            cpu_percent,
        })
    }
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

fn latency(reps: &[Rep]) -> Latency {
    let of = |gaps: &mut Vec<u64>, share| ms(percentile(gaps, share) / 1_000);
    let (mut all, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    for rep in reps {
        let mut gaps = rep.observed.gaps_ns();
        p50.push(of(&mut gaps, 0.5));
        p99.push(of(&mut gaps, 0.99));
        all.append(&mut gaps);
    }
    Latency {
        gap_p50_ms: of(&mut all, 0.5),
        gap_p99_ms: of(&mut all, 0.99),
        run_p50_ms: Stat::of(&p50),
        run_p99_ms: Stat::of(&p99),
        cost: cost(reps),
    }
}

fn throughput(reps: &[Rep]) -> Throughput {
    let rates: Vec<f64> = reps.iter().map(|rep| f64::from(rep.steps) / rep.load.wall_s).collect();
    Throughput { steps_per_second: Stat::of(&rates), cost: cost(reps) }
}

fn small_runs(reps: &[Rep]) -> SmallRuns {
    let rates: Vec<f64> = reps.iter().map(|rep| rep.load.run_us.len() as f64 / rep.load.wall_s).collect();
    let share = |share| {
        let of = |rep: &Rep| ms(percentile(&mut rep.load.run_us.clone(), share));
        Stat::of(&reps.iter().map(of).collect::<Vec<_>>())
    };
    SmallRuns { runs_per_second: Stat::of(&rates), end_p50_ms: share(0.5), end_p99_ms: share(0.99), cost: cost(reps) }
}

fn cost(reps: &[Rep]) -> Cost {
    let mut cpu: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let mut written: BTreeMap<&'static str, Vec<Option<f64>>> = BTreeMap::new();
    let (mut totals, mut clients, mut flushes, mut others) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for rep in reps {
        let steps = f64::from(rep.steps);
        let mut total = 0.0;
        for (role, after) in &rep.after.usage {
            let Some(before) = rep.before.usage.get(role) else { continue };
            let seconds = (after.cpu_s - before.cpu_s) / steps * 1e3;
            total += seconds;
            cpu.entry(role).or_default().push(seconds);
            let bytes = after.written_bytes.zip(before.written_bytes).map(|(a, b)| a.saturating_sub(b));
            written.entry(role).or_default().push(bytes.map(|bytes| bytes as f64 / 1024.0 / steps));
        }
        totals.push(total);
        let client = (rep.after.client_cpu_s - rep.before.client_cpu_s) / steps * 1e3;
        clients.push(client);
        let (own_s, wall_s) = ((total + client) * steps / 1e3, (rep.after.at - rep.before.at).as_secs_f64());
        let machine = rep.after.machine_cpu_s.zip(rep.before.machine_cpu_s);
        others.push(machine.map(|(after, before)| ((after - before - own_s) / wall_s).max(0.0)));
        flushes.push(rep.after.flushes.zip(rep.before.flushes).map(|(a, b)| a.saturating_sub(b) as f64 / steps));
    }
    let whole = |values: Vec<Option<f64>>| Stat::of(&values.into_iter().collect::<Option<Vec<_>>>()?);
    Cost {
        cpu_s_per_1000: cpu.into_iter().filter_map(|(role, values)| Some((role, Stat::of(&values)?))).collect(),
        cpu_s_per_1000_total: Stat::of(&totals),
        client_cpu_s_per_1000: Stat::of(&clients),
        written_kib_per_step: written.into_iter().map(|(role, values)| (role, whole(values))).collect(),
        flushes_per_step: whole(flushes),
        others_cores: whole(others),
    }
}
