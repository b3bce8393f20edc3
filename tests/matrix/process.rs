//! The processes of both fleets: each runs this program, writes lines, and stops at a line.

use std::io::{BufRead, BufReader, Write as _, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// A process, and the lines that it has written since it was ready.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Process {
    /// Starts this program with arguments, and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            loop {
                let mut line = String::new();
                output.read_line(&mut line).expect("text");
                // The last line of a process that was killed can be cut off.
                if line.pop() != Some('\n') {
                    return;
                }
                written.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, lines, reader }
    }

    pub(crate) fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "{signal}");
    }

    /// Stops processes. Returns whether each has succeeded, and its lines.
    pub(crate) fn finish(mut processes: Vec<Self>) -> Vec<(bool, Vec<String>)> {
        for process in &mut processes {
            // A process that was killed reads nothing.
            let _ = process.child.stdin.take().expect("piped").write_all(b"stop\n");
        }
        let finish = |mut process: Self| {
            let status = process.child.wait().expect("its end");
            process.reader.join().expect("no panic");
            let lines = process.lines.lock().unwrap_or_else(PoisonError::into_inner);
            (status.success(), lines.clone())
        };
        processes.into_iter().map(finish).collect()
    }
}

/// In a process of a fleet: tells it that it is ready, and returns whether it has to stop.
pub(crate) fn ready() -> Arc<AtomicBool> {
    let stopping = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopping);
    thread::spawn(move || {
        let _ = stdin().read_line(&mut String::new());
        stop.store(true, Relaxed);
    });
    println!("ready");
    stopping
}
