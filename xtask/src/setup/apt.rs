//! Installs Debian packages without questions and without starting their services.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::lookup;
use crate::cargo::run;
use crate::step;

/// Asked by Debian's maintainer scripts whether a service may be started; 101 forbids it.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Another package manager may be at work: wait for it, but not for ever.
const LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=300";

/// Whether this user may install packages with apt-get.
pub(crate) fn is_usable() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    lookup::find("apt-get").is_some() && id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Installs packages, after bringing the package lists up to date.
///
/// # Errors
/// When apt-get fails; its own words are on the terminal.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    step("apt-get update");
    if let Err(error) = run(apt().args(["-qq", "update"])) {
        // One unreachable archive fails it; the packages may come from another, and installing says if they do not.
        step(format!("{error:#}, going on with the lists at hand"));
    }
    step(format!("apt-get install {}", packages.join(" ")));
    let _policy = NoServices::begin()?;
    run(apt().args(["-qq", "-y", "--no-install-recommends", "install"]).args(packages).stdout(Stdio::null()))
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", LOCK_TIMEOUT]).stdin(Stdio::null());
    command
}

/// While it lives no package starts its service, unless the machine has a policy of its own: then that one counts.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn begin() -> Result<Self> {
        match OpenOptions::new().write(true).create_new(true).mode(0o755).open(Path::new(POLICY)) {
            Ok(mut file) => {
                file.write_all(b"#!/bin/sh\nexit 101\n").with_context(|| format!("cannot write {POLICY}"))?;
                Ok(Self { is_ours: true })
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Self { is_ours: false }),
            Err(error) => Err(error).with_context(|| format!("cannot make {POLICY}")),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}
