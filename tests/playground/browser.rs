//! The playground as a program, and a browser that looks at it.

use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thirtyfour::prelude::*;
use thirtyfour::{LoggingPrefsLogLevel, TypingData};
use tokio::time::Instant;

/// How long a page may take to show what it should, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A process that ends with its test, and all that it started with it.
pub(crate) struct Program {
    child: Child,
    /// What it said of where it is.
    pub(crate) address: String,
}

impl Program {
    /// Starts it and reads until a line has what stands between `before` and `after`.
    pub(crate) fn start(mut command: Command, before: &str, after: &str) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}; see tests/run"));
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("UTF-8");
            let (_, rest) = line.split_once(before)?;
            Some(rest.strip_suffix(after)?.to_owned())
        });
        // Nobody reads on; what is written later must not stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("it says where it listens") }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.child.wait();
    }
}

pub(crate) fn playground() -> Command {
    let mut command = support::example::example("playground");
    command.env_remove("RATELIMIT_REDIS_URL").env_remove("HOST").env_remove("PORT");
    command
}

/// The page in a browser of its own.
pub(crate) struct Page {
    pub(crate) driver: WebDriver,
    _chromedriver: Program,
    playground: Program,
}

impl Page {
    /// Opens the page as it is with no Redis.
    pub(crate) async fn open() -> Self {
        Self::open_of(playground()).await
    }

    pub(crate) async fn open_of(playground: Command) -> Self {
        let playground = Program::start(playground, "playing on ", "");
        let mut chromedriver = Command::new("chromedriver");
        chromedriver.arg("--port=0");
        let chromedriver = Program::start(chromedriver, "successfully on port ", ".");
        let mut wanted = DesiredCapabilities::chrome();
        wanted.set_headless().expect("JSON");
        // The sandbox is not to be had as root; what is looked at is our own.
        for argument in ["no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"] {
            wanted.add_arg(&format!("--{argument}")).expect("JSON");
        }
        wanted.set_browser_log_level(LoggingPrefsLogLevel::All).expect("JSON");
        let address = format!("http://127.0.0.1:{}", chromedriver.address);
        let driver = WebDriver::new(address, wanted).await.expect("Chromium starts");
        let page = Self { driver, _chromedriver: chromedriver, playground };
        page.size(1280, 960).await;
        page.driver.goto(&page.playground.address).await.expect("the page loads");
        page.is_live().await;
        page
    }

    pub(crate) fn address(&self) -> &str {
        &self.playground.address
    }

    /// Waits until the server has told the page something.
    pub(crate) async fn is_live(&self) {
        self.until("document.querySelectorAll('.lane .next:not(:empty)').length", &5).await;
    }

    pub(crate) async fn size(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub(crate) async fn cdp(&self, method: &str, parameters: Value) -> Value {
        self.driver.cdp().send_raw(method, parameters).await.expect(method)
    }

    /// The value of an expression on the page.
    pub(crate) async fn value<T: DeserializeOwned>(&self, expression: &str) -> T {
        let answer = self.driver.execute(format!("return {expression}"), Vec::new()).await;
        answer.expect(expression).convert().expect(expression)
    }

    /// Waits until an expression has a value.
    pub(crate) async fn until<T>(&self, expression: &str, wanted: &T)
    where
        T: DeserializeOwned + PartialEq + Debug,
    {
        let end = Instant::now() + DEADLINE;
        loop {
            let value: T = self.value(expression).await;
            if value == *wanted {
                return;
            }
            assert!(Instant::now() < end, "{expression} is {value:?}, and not {wanted:?}");
            // There is no event to wait for but the page itself.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn find(&self, selector: &str) -> WebElement {
        self.driver.find(By::Css(selector)).await.expect(selector)
    }

    pub(crate) async fn click(&self, selector: &str) {
        self.find(selector).await.click().await.expect(selector);
    }

    /// Presses a choice of a group by what is to be seen of it.
    pub(crate) async fn choose(&self, value: &str) {
        self.click(&format!("label:has([value={value}])")).await;
        self.until(&format!("document.querySelector('[value={value}]').checked"), &true).await;
    }

    /// Types into a field, over what is there.
    pub(crate) async fn fill(&self, field: &str, text: &str) {
        let field = self.find(&format!("#{field}")).await;
        field.clear().await.expect("a field");
        // One that is left empty is told of by a key all the same.
        field.send_keys(if text.is_empty() { " " } else { text }).await.expect("a field");
    }

    /// Presses a key where the focus is.
    pub(crate) async fn press(&self, key: impl Into<TypingData>) {
        self.driver.action_chain().send_keys(key).perform().await.expect("a key");
    }

    /// Admitted and refused by each lane.
    pub(crate) async fn tallies(&self, wanted: [[u32; 2]; 5]) {
        let tallies = "[...document.querySelectorAll('.lane')].map(lane => \
            [...lane.querySelectorAll('.tally b')].map(count => Number(count.textContent)))";
        self.until(tallies, &wanted.map(Vec::from).to_vec()).await;
    }

    /// What went wrong on the page since this was asked last.
    pub(crate) async fn mistakes(&self) -> Vec<String> {
        let log = self.driver.browser_log().await.expect("a log");
        log.into_iter()
            .filter(|entry| entry.level == "SEVERE" || entry.level == "WARNING")
            .map(|entry| entry.message)
            .collect()
    }

    pub(crate) async fn close(self) {
        self.driver.clone().quit().await.expect("the browser ends");
    }
}

impl Drop for Page {
    /// Where a test has failed, the browser ends with the group of what started it: to be asked to quit
    /// from here it can take minutes.
    fn drop(&mut self) {
        let _ = self.driver.clone().leak();
    }
}
