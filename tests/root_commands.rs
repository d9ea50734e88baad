//! Commands that root runs (CONTROL-7): whom they believe, and that whoever owns a directory cannot
//! lead them to files elsewhere. The other user of these tests has no name: 65532.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::command::{Ran, command, ran, run};
use crate::support::wait_until;
use crate::support::weir::{StateDir, state_dir};

const OTHER: u32 = 65_532;

/// A directory of the other user.
fn of_other() -> StateDir {
    let state = state_dir();
    chown(state.path(), Some(OTHER), Some(OTHER)).expect("chown");
    state
}

/// A directory like /tmp: root's, and everybody may make files there.
fn like_tmp() -> StateDir {
    let dir = state_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).expect("chmod");
    dir
}

/// A program of the other user. It ends with the test.
struct Other(Child);

impl Other {
    fn run(script: &str, arguments: &[&Path]) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", script]).args(arguments);
        let child = command
            .uid(OTHER)
            .gid(OTHER)
            .current_dir("/")
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("python3 runs"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers everything with settings that name a file, and with health.
const FALSE_SERVICE: &str = "
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen(8)
named = [{'name': n, 'value': sys.argv[2], 'origin': 'environment'} for n in ('WAF_RULES_FILE', 'WAF_LOG_FILE')]
window = {'used': 0, 'limit': None, 'fits_in_seconds': None}
windows = {'minute': window, 'hour': window, 'day': window}
explained = {
    'address': '192.0.2.1', 'method': 'GET', 'path': '/seen', 'client': '192.0.2.1', 'netblock': '192.0.2.0/24',
    'now': {'result': 'passed'}, 'requests': windows, 'bytes': windows,
}
body = json.dumps({'settings': named, 'status': 'pass', 'bans': [], 'changed': True, **explained}).encode()
problem = json.dumps({'title': 'Not Found', 'status': 404}).encode()
while True:
    c, _ = s.accept()
    c.settimeout(1)
    try:
        head = c.recv(65536)
        status, said = (b'404 Not Found', problem) if b'request=' in head else (b'200 OK', body)
        c.sendall(b'HTTP/1.1 %s\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n' % (status, len(said)) + said)
    except OSError:
        pass
    c.close()
";

#[track_caller]
fn false_service(socket: &Path, names: &Path) -> Other {
    let other = Other::run(FALSE_SERVICE, &[socket, names]);
    wait_until("the false service", || {
        std::os::unix::net::UnixStream::connect(socket).is_ok()
    });
    other
}

#[track_caller]
fn not_believed(ran: &Ran, word: &str) {
    assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{}", ran.err);
    assert!(ran.err.contains("is not believed: "), "{}", ran.err);
    assert!(ran.err.contains(word), "{}", ran.err);
}

/// CONTROL-7: a false socket in a directory like /tmp is not believed, nor is one in a directory of
/// somebody else, nor a link to another's socket; the service of the owner of the directory is.
#[test]
#[ignore = "needs root, to be another user"]
fn a_false_socket_is_not_believed() {
    let victims = state_dir();
    let named = victims.path().join("manifest.json");
    let shared = like_tmp();
    let _false = false_service(&shared.path().join("weir.sock"), &named);
    let whole = format!("its process belongs to uid {OTHER}");
    for arguments in [
        &["health"][..],
        &["bans"],
        &["allow", "192.0.2.7"],
        &["deny", "192.0.2.7", "--remove"],
        &["explain", "--request", "x"],
    ] {
        not_believed(&run(shared.path(), arguments), &whole);
    }
    let socket = shared.path().join("weir.sock");
    let socket = socket.to_str().expect("a path");
    not_believed(
        &run(victims.path(), &["health", "--socket", socket]),
        &whole,
    );
    let his = of_other();
    let own = run(his.path(), &["health", "--socket", socket]);
    assert_eq!(own.out, "pass\n", "{}", own.err);
    assert!(!named.exists());

    // `./state` of somebody else is none.
    let state = shared.path().join("state");
    fs::create_dir(&state).expect("a directory");
    chown(&state, Some(OTHER), Some(OTHER)).expect("chown");
    let _beside = false_service(&state.join("weir.sock"), &named);
    // Where no service is installed: this machine may have one, and its lists would be changed.
    let nowhere = "mount -t tmpfs tmpfs /var/lib && exec \"$0\" allow 192.0.2.7";
    let beside = Command::new("unshare")
        .args(["--mount", "sh", "-c", nowhere, env!("CARGO_BIN_EXE_weir")])
        .env_remove("WAF_STATE_DIR")
        .current_dir(shared.path())
        .stdin(Stdio::null())
        .output();
    let beside = ran(beside.expect("unshare runs"));
    assert_ne!(beside.code, 0, "{}", beside.out);
    for told in [
        "./state is not yours",
        "/var/lib/weir/rules.json cannot be changed",
    ] {
        assert!(beside.err.contains(told), "{}", beside.err);
    }
    assert!(!named.exists() && !state.join("rules.json").exists());

    // Who names the directory of the other user believes his service, and no more than that.
    let own = run(&state, &["health"]);
    assert_eq!(own.out, "pass\n", "{}", own.err);
    run(&state, &["allow", "192.0.2.7"]);
    assert!(!named.exists());
    // A link of his to a socket that is root's.
    let linked = of_other();
    let link = linked.path().join("weir.sock");
    let roots = victims.path().join("root.sock");
    let _roots = std::os::unix::net::UnixListener::bind(&roots).expect("binds");
    symlink(&roots, &link).expect("a link");
    lchown(&link, Some(1234), Some(1234)).expect("lchown");
    not_believed(
        &run(linked.path(), &["health"]),
        "its name belongs to uid 1234",
    );
}

/// Puts a link to a file in the place of each file that a command makes, as fast as it can.
const RACER: &str = "
import os, sys
os.chdir(sys.argv[1])
while True:
    for name in os.listdir('.'):
        if name.startswith('.rules.json'):
            try:
                os.symlink(sys.argv[2], 'link')
            except OSError:
                pass
            try:
                os.rename('link', name)
            except OSError:
                pass
";

/// CONTROL-7: the owner of the state directory swaps what root makes there for links to a file of
/// root's, which stays root's and stays as it is; without him the new file is his.
#[test]
#[ignore = "needs root, to be another user"]
fn a_racer_gets_no_file() {
    let victims = state_dir();
    let victim = victims.path().join("victim");
    fs::write(&victim, "{\"version\":1}").expect("writes");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::set_permissions(victims.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let before = fs::metadata(&victim).expect("the victim");
    let state = of_other();
    let file = state.path().join("rules.json");
    assert_eq!(run(state.path(), &["deny", "192.0.2.1"]).code, 0);
    let made = fs::metadata(&file).expect("rules.json");
    assert_eq!((made.uid(), made.gid()), (OTHER, OTHER));
    let racer = Other::run(RACER, &[state.path(), &victim]);
    let mut failed = 0;
    for number in 0..60 {
        if number % 10 == 0 {
            let _ = fs::remove_file(&file);
        }
        let ended = run(state.path(), &["deny", &format!("198.51.100.{number}")]);
        failed += i32::from(ended.code != 0);
        let now = fs::metadata(&victim).expect("the victim");
        assert_eq!(
            (now.uid(), now.mode()),
            (before.uid(), before.mode()),
            "{number}"
        );
    }
    drop(racer);
    println!("{failed} of 60 commands were kept from their work");
    let text = fs::read_to_string(&victim).expect("the victim");
    assert_eq!(text, "{\"version\":1}");
}

/// CONTROL-7: a link of somebody else to a file elsewhere is not followed, also not by way of his
/// own directories; a link of root's is.
#[test]
#[ignore = "needs root, to be another user"]
fn a_link_is_followed_for_its_owner() {
    let victims = state_dir();
    let victim = victims.path().join("daemon.json");
    fs::write(&victim, "{\"version\":1}").expect("writes");
    let state = of_other();
    let file = state.path().join("rules.json");
    let his = |target: &Path, link: &Path| {
        let _ = fs::remove_file(link);
        symlink(target, link).expect("a link");
        lchown(link, Some(OTHER), Some(OTHER)).expect("lchown");
    };
    let refused = |why: &str| {
        let ended = run(state.path(), &["deny", "192.0.2.1"]);
        assert_eq!(ended.code, 78, "{why}: {}", ended.out);
        assert!(
            ended.err.contains("it is not followed"),
            "{why}: {}",
            ended.err
        );
        let text = fs::read_to_string(&victim).expect("the victim");
        assert_eq!(text, "{\"version\":1}", "{why}");
    };
    his(&victim, &file);
    refused("his link");
    let roots = state.path().join("roots");
    symlink(&victim, &roots).expect("a link");
    his(Path::new("roots"), &file);
    refused("his link to a link of root's");
    his(victims.path(), &state.path().join("dir"));
    his(Path::new("dir/daemon.json"), &file);
    refused("by a directory that is a link of his");
    let own = state.path().join("own.json");
    fs::write(&own, "{\"version\":1}").expect("writes");
    chown(&own, Some(OTHER), Some(OTHER)).expect("chown");
    his(Path::new("own.json"), &file);
    let ended = run(state.path(), &["deny", "192.0.2.1"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(fs::symlink_metadata(&file).expect("the link").is_symlink());
    let found = fs::metadata(&own).expect("his file");
    assert_eq!((found.uid(), found.gid()), (OTHER, OTHER));
    fs::remove_file(&file).expect("removes it");
    symlink(&victim, &file).expect("a link of root's");
    assert_eq!(run(state.path(), &["deny", "192.0.2.1"]).code, 0);
    assert!(
        fs::read_to_string(&victim)
            .expect("it")
            .contains("192.0.2.1")
    );
    assert_eq!(fs::metadata(&victim).expect("it").uid(), 0);
}

/// CONTROL-7: what a command of root's makes in somebody else's directory, or where everybody may
/// make files, takes the place of a link and is that of the directory's owner.
#[test]
#[ignore = "needs root, to be another user"]
fn a_file_that_a_command_makes_goes_through_no_link() {
    let victims = state_dir();
    let victim = victims.path().join("shadow");
    let log = victims.path().join("access.log");
    let line = "192.0.2.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n";
    fs::write(&log, line).expect("writes");
    let log = log.to_str().expect("a path");
    for (dir, owner) in [(of_other(), OTHER), (like_tmp(), 0)] {
        fs::write(&victim, "secret").expect("writes");
        let (page, refusals) = (dir.path().join("weir.1"), dir.path().join("refused"));
        for link in [&page, &refusals] {
            symlink(&victim, link).expect("a link");
            lchown(link, Some(OTHER), Some(OTHER)).expect("lchown");
        }
        let inside = dir.path().to_str().expect("a path");
        let file = refusals.to_str().expect("a path");
        for arguments in [
            &["man", "--dir", inside][..],
            &["replay", log, "--refusals", file],
        ] {
            let ended = run(victims.path(), arguments);
            assert!([0, 1].contains(&ended.code), "{arguments:?}: {}", ended.err);
        }
        let text = fs::read_to_string(&victim).expect("the victim");
        assert_eq!(text, "secret");
        for made in [&page, &refusals] {
            let found = fs::symlink_metadata(made).expect("a file");
            assert!(found.is_file() && found.uid() == owner, "{found:?}");
        }
    }
}

/// CONTROL-7, CONTROL-5: the log that a service of another user names is searched only where it
/// lies in his state directory, and never through a link; the caller's own settings may name any.
#[test]
#[ignore = "needs root, to be another user"]
fn a_log_is_read_where_it_may_be() {
    let victims = state_dir();
    let line = "{\"request_id\":\"one\",\"address\":\"192.0.2.1\",\"method\":\"GET\",\"path\":\"/seen\"}\n";
    let elsewhere = victims.path().join("weir.log");
    fs::write(&elsewhere, line).expect("writes");
    let explain = |state: &StateDir, named: Option<&Path>| {
        let mut command = command(state.path(), &["explain", "--request", "one"]);
        if let Some(named) = named {
            command.env("WAF_LOG_FILE", named);
        }
        ran(command.output().expect("the binary runs"))
    };
    let state = of_other();
    let _false = false_service(&state.path().join("weir.sock"), &elsewhere);
    let refused = explain(&state, None);
    assert_eq!(refused.code, 2, "{}", refused.out);
    let told = "is only the word of the service: name it with WAF_LOG_FILE";
    assert!(refused.err.contains(told), "{}", refused.err);
    assert_eq!(explain(&state, Some(&elsewhere)).code, 0);

    let state = of_other();
    let inside = state.path().join("weir.log");
    let _false = false_service(&state.path().join("weir.sock"), &inside);
    symlink(&elsewhere, &inside).expect("a link");
    let refused = explain(&state, None);
    assert_eq!(refused.code, 2, "{}", refused.out);
    assert!(refused.err.contains("cannot be read: "), "{}", refused.err);
    fs::remove_file(&inside).expect("removes it");
    fs::write(&inside, line).expect("writes");
    let found = explain(&state, None);
    assert_eq!(found.code, 0, "{}", found.err);
}

/// STATE-6, CONTROL-3, CONTROL-4: of a state directory that is closed to this user, a start and a
/// check name the directory, and none of the files in it; no command says that no service runs.
#[test]
#[ignore = "needs root, to be another user"]
fn a_closed_directory_is_named_before_its_files() {
    let state = of_other();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
    fs::write(state.path().join("rules.json"), r#"{"version":1}"#).expect("writes");
    let places = tempfile::tempdir().expect("a directory");
    fs::set_permissions(places.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    // The one that was built may lie where others cannot run it.
    let program = places.path().join("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).expect("a copy");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env_clear()
            .env("WAF_STATE_DIR", state.path())
            .env("WAF_UPSTREAM", "http://127.0.0.1:9")
            .env("WAF_LISTEN", "127.0.0.1:0")
            .env("WAF_LOOKUP_SOURCE", "off")
            .env("WAF_MAX_CONNECTIONS", "100")
            .current_dir("/")
            .stdin(Stdio::null())
            .uid(OTHER + 1)
            .gid(OTHER + 1);
        ran(command.output().expect("the binary runs"))
    };
    let dir = state.path().display();
    let closed = format!(
        "weir: state directory {dir} is closed to this user: run as its owner (uid {OTHER}), or set WAF_STATE_DIR"
    );
    for arguments in ["serve", "check"] {
        let refused = run(&[arguments]);
        assert_eq!(refused.code, 78, "{arguments}: {}", refused.err);
        let faults = refused.err.lines().filter(|line| !line.contains("warning"));
        assert_eq!(faults.collect::<Vec<_>>(), [&closed], "{arguments}");
    }
    for arguments in [&["status"][..], &["bans"], &["alerts"], &["settings"]] {
        let refused = run(arguments);
        assert_eq!(refused.code, 69, "{arguments:?}: {}", refused.out);
        let told = "is open to the user of the service and to root: run the command as one of them";
        assert!(refused.err.contains(told), "{}", refused.err);
        assert!(!refused.err.contains("no service"), "{}", refused.err);
    }
}
