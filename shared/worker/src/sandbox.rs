//! What a worker lets its tools do: nothing, unless the policy says so.

use std::{
    collections::BTreeSet,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt as _},
};
use serde::Deserialize;

/// Opening must not wait for the other end of a pipe.
const O_NONBLOCK: i32 = if cfg!(target_os = "linux") { 0o4000 } else { 0x4 };

/// A permission that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission<'a> {
    /// To run this tool.
    Tool(&'a str),
    /// To talk to this MCP server.
    Mcp(&'a str),
    /// To use this skill.
    Skill(&'a str),
    /// To reach this origin, as in `https://example.com`.
    Network(&'a str),
    /// To read files of the workspace.
    Read,
    /// To write files of the workspace.
    Write,
    /// To execute commands.
    Execute,
}

impl std::fmt::Display for Permission<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tool(name) => write!(f, "tools:{name}"),
            Self::Mcp(name) => write!(f, "mcp:{name}"),
            Self::Skill(name) => write!(f, "skills:{name}"),
            Self::Network(origin) => write!(f, "network:{origin}"),
            Self::Read => f.write_str("read"),
            Self::Write => f.write_str("write"),
            Self::Execute => f.write_str("execute"),
        }
    }
}

/// Why the sandbox refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The policy does not allow it, or the path leaves the workspace.
    #[error("permission denied: {0}")]
    Denied(String),
    /// The policy itself is malformed.
    #[error("invalid sandbox: {0}")]
    Policy(String),
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// It is not a regular file, or not text.
    #[error("not a text file")]
    NotText,
    /// It is larger than the limit.
    #[error("the file has more than {0} bytes")]
    TooLarge(u64),
    /// The system failed to read it.
    #[error("failed to read the file: {0}")]
    Io(std::io::ErrorKind),
}

/// What is allowed. Names match exactly, `*` matches all; everything else is denied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SandboxPolicy {
    /// Tools that may run.
    pub tools: Vec<String>,
    /// MCP servers that may be called.
    pub mcp: Vec<String>,
    /// Skills that may be used.
    pub skills: Vec<String>,
    /// Origins that may be reached.
    pub network: Vec<String>,
    /// Whether files of the workspace may be read.
    pub read: bool,
    /// Whether they may be written.
    pub write: bool,
    /// Whether commands may be executed.
    pub execute: bool,
}

/// A policy in force over one workspace. Cloning shares it; it never changes.
#[derive(Debug, Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tools: BTreeSet<String>,
    mcp: BTreeSet<String>,
    skills: BTreeSet<String>,
    network: BTreeSet<String>,
    read: bool,
    write: bool,
    execute: bool,
    workspace: Option<Workspace>,
}

#[derive(Debug)]
struct Workspace {
    root: PathBuf,
    dir: Dir,
}

impl Sandbox {
    /// Checks a policy and opens the workspace, if there is one.
    ///
    /// # Errors
    /// A name is blank, a network entry is no origin, or the workspace is no directory.
    pub fn new(policy: &SandboxPolicy, workspace: Option<&Path>) -> Result<Self, SandboxError> {
        let workspace = match workspace {
            None => None,
            Some(root) => {
                let cannot = |error: std::io::Error| {
                    SandboxError::Policy(format!("the workspace cannot be opened: {}", error.kind()))
                };
                let root = root.canonicalize().map_err(cannot)?;
                let dir = Dir::open_ambient_dir(&root, ambient_authority()).map_err(cannot)?;
                Some(Workspace { root, dir })
            }
        };
        Ok(Self {
            inner: Arc::new(Inner {
                tools: names("tools", &policy.tools)?,
                mcp: names("mcp", &policy.mcp)?,
                skills: names("skills", &policy.skills)?,
                network: origins(&policy.network)?,
                read: policy.read,
                write: policy.write,
                execute: policy.execute,
                workspace,
            }),
        })
    }

    /// A sandbox that allows nothing.
    pub fn deny_all() -> Self {
        Self {
            inner: Arc::new(Inner {
                tools: BTreeSet::new(),
                mcp: BTreeSet::new(),
                skills: BTreeSet::new(),
                network: BTreeSet::new(),
                read: false,
                write: false,
                execute: false,
                workspace: None,
            }),
        }
    }

    /// Whether this is allowed.
    pub fn allows(&self, permission: Permission<'_>) -> bool {
        let named = |set: &BTreeSet<String>, name: &str| set.contains(name) || set.contains("*");
        match permission {
            Permission::Tool(name) => named(&self.inner.tools, name),
            Permission::Mcp(name) => named(&self.inner.mcp, name),
            Permission::Skill(name) => named(&self.inner.skills, name),
            Permission::Network(origin) => named(&self.inner.network, origin),
            Permission::Read => self.inner.read,
            Permission::Write => self.inner.write,
            Permission::Execute => self.inner.execute,
        }
    }

    /// As [`Sandbox::allows`], as an error that names what was asked for.
    ///
    /// # Errors
    /// [`SandboxError::Denied`].
    pub fn assert(&self, permission: Permission<'_>) -> Result<(), SandboxError> {
        if self.allows(permission) { Ok(()) } else { Err(SandboxError::Denied(permission.to_string())) }
    }

    /// Reads a text file of the workspace, at most `bytes_max` bytes. The path is relative to the workspace, or absolute
    /// inside it. Symbolic links are followed while they stay inside; the file that is checked is the file that is read.
    ///
    /// # Errors
    /// Without the read permission or outside the workspace [`SandboxError::Denied`]; else why it cannot be read.
    pub async fn read_text(&self, path: &str, bytes_max: u64) -> Result<String, SandboxError> {
        self.assert(Permission::Read)?;
        let inner = self.inner.clone();
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || match &inner.workspace {
            Some(workspace) => workspace.read_text(Path::new(&path), bytes_max),
            None => Err(SandboxError::Denied("read: there is no workspace".into())),
        })
        .await
        .unwrap_or(Err(SandboxError::Io(std::io::ErrorKind::Other)))
    }
}

impl Workspace {
    fn read_text(&self, path: &Path, bytes_max: u64) -> Result<String, SandboxError> {
        let inside = if path.is_absolute() {
            path.strip_prefix(&self.root).map_err(|_| SandboxError::Denied("read: outside the workspace".into()))?
        } else {
            path
        };
        // Resolved by the kernel beneath the opened directory (or step by step where it cannot): nothing can be swapped
        // between a check and the opening.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(O_NONBLOCK);
        let file = self.dir.open_with(inside, &options).map_err(refusal)?;
        let metadata = file.metadata().map_err(refusal)?;
        if !metadata.is_file() {
            return Err(SandboxError::NotText);
        }
        if metadata.len() > bytes_max {
            return Err(SandboxError::TooLarge(bytes_max));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        // The file may grow while it is read.
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(refusal)?;
        if bytes.len() as u64 > bytes_max {
            return Err(SandboxError::TooLarge(bytes_max));
        }
        String::from_utf8(bytes).map_err(|_| SandboxError::NotText)
    }
}

fn refusal(error: std::io::Error) -> SandboxError {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => SandboxError::NotFound,
        // How cap-std and the kernel say that a path leaves the directory, and what the system itself denies.
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::CrossesDevices => {
            SandboxError::Denied("read: outside the workspace or not readable".into())
        }
        std::io::ErrorKind::IsADirectory => SandboxError::NotText,
        kind => SandboxError::Io(kind),
    }
}

fn names(kind: &str, given: &[String]) -> Result<BTreeSet<String>, SandboxError> {
    if given.iter().any(|name| name.trim().is_empty()) {
        return Err(SandboxError::Policy(format!("{kind} has a blank name")));
    }
    Ok(given.iter().cloned().collect())
}

/// Exact origins: scheme, host and port, nothing behind.
fn origins(given: &[String]) -> Result<BTreeSet<String>, SandboxError> {
    for origin in given.iter().filter(|origin| *origin != "*") {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://")).unwrap_or("");
        let bad = |c: char| matches!(c, '/' | '?' | '#' | '@' | '\\') || c.is_whitespace() || c.is_control();
        if host.is_empty() || host.contains(bad) {
            return Err(SandboxError::Policy(
                "network has an entry that is no origin such as https://example.com".into(),
            ));
        }
    }
    names("network", given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(read: bool) -> SandboxPolicy {
        SandboxPolicy {
            tools: vec!["a".into()],
            network: vec!["https://x.org:8443".into()],
            read,
            ..Default::default()
        }
    }

    #[test]
    fn case_325_an_empty_policy_denies_everything() {
        let sandbox = Sandbox::new(&SandboxPolicy::default(), None).unwrap();
        for permission in [
            Permission::Tool("a"),
            Permission::Mcp("a"),
            Permission::Skill("a"),
            Permission::Network("https://x.org"),
            Permission::Read,
            Permission::Write,
            Permission::Execute,
        ] {
            assert!(!sandbox.allows(permission));
            let error = sandbox.assert(permission).unwrap_err().to_string();
            assert_eq!(error, format!("permission denied: {permission}"));
        }
        let sandbox = Sandbox::new(&policy(false), None).unwrap();
        assert!(sandbox.allows(Permission::Tool("a")) && !sandbox.allows(Permission::Tool("b")));
        assert!(sandbox.allows(Permission::Network("https://x.org:8443")));
        assert!(!sandbox.allows(Permission::Network("https://x.org")));
    }

    #[test]
    fn case_330_a_malformed_policy_is_refused() {
        for text in [r#"{"execute":"false"}"#, r#"{"read":1}"#, r#"{"tools":"all"}"#, r#"{"network":[null]}"#] {
            assert!(serde_json::from_str::<SandboxPolicy>(text).is_err(), "{text}");
        }
        for bad in ["", "x.org", "https://", "https://x.org/", "https://u@x.org", "ftp://x.org", "https://x.org?q"] {
            let policy = SandboxPolicy { network: vec![bad.into()], ..Default::default() };
            let error = Sandbox::new(&policy, None).unwrap_err().to_string();
            assert!(error.contains("invalid sandbox"), "{bad}: {error}");
        }
        let policy = SandboxPolicy { tools: vec![" ".into()], ..Default::default() };
        assert!(Sandbox::new(&policy, None).is_err());
        assert!(Sandbox::new(&SandboxPolicy::default(), Some(Path::new("no/such/directory"))).is_err());
    }

    #[tokio::test]
    async fn case_326_reading_stays_inside_the_workspace() {
        use std::os::unix::fs::symlink;

        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("workspace");
        std::fs::create_dir_all(root.join("docs")).unwrap();
        std::fs::write(outer.path().join("secret"), "secret").unwrap();
        std::fs::write(root.join("docs/a.txt"), "héllo").unwrap();
        std::fs::write(root.join("binary"), [0xff, 0xfe]).unwrap();
        symlink("docs/a.txt", root.join("inside")).unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("/etc", root.join("absolute")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
        let sandbox = Sandbox::new(&policy(true), Some(&root)).unwrap();
        let read = async |path: &str| sandbox.read_text(path, 6).await;

        assert_eq!(read("docs/a.txt").await.unwrap(), "héllo");
        assert_eq!(read("./docs/../docs/a.txt").await.unwrap(), "héllo");
        assert_eq!(read("inside").await.unwrap(), "héllo");
        let absolute = root.canonicalize().unwrap().join("docs/a.txt");
        assert_eq!(read(absolute.to_str().unwrap()).await.unwrap(), "héllo");
        for path in ["../secret", "out", "absolute/hostname", "/etc/hostname", "docs/../../secret"] {
            let error = read(path).await.unwrap_err();
            assert!(matches!(error, SandboxError::Denied(_)), "{path}: {error}");
        }
        assert_eq!(read("dangling").await, Err(SandboxError::NotFound));
        assert_eq!(read("docs/a.txt/x").await, Err(SandboxError::NotFound));
        assert!(read("loop").await.is_err() && read("").await.is_err() && read("a\0b").await.is_err());
        assert_eq!(read("docs").await, Err(SandboxError::NotText));
        assert_eq!(read("pipe").await, Err(SandboxError::NotText), "and nobody waits for its other end");
        assert_eq!(read("binary").await, Err(SandboxError::NotText));
        assert_eq!(sandbox.read_text("docs/a.txt", 5).await, Err(SandboxError::TooLarge(5)));
    }

    #[tokio::test]
    async fn reading_needs_the_permission_and_a_workspace() {
        let root = tempfile::tempdir().unwrap();
        let sandbox = Sandbox::new(&policy(false), Some(root.path())).unwrap();
        assert_eq!(sandbox.read_text("a", 1).await, Err(SandboxError::Denied("read".into())));
        let sandbox = Sandbox::new(&policy(true), None).unwrap();
        assert!(matches!(sandbox.read_text("a", 1).await, Err(SandboxError::Denied(_))));
    }
}
