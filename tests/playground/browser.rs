//! Runs the playground as a program, and opens it in a browser.

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

/// The longest time until a page shows the expected contents, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A process that ends with its test, together with all processes that it has started.
pub(crate) struct Program {
    child: Child,
    /// The address that the process has printed.
    pub(crate) address: String,
}

impl Program {
    /// Starts a process, whose address is in the first line with `before`, from there to `after` at the end.
    pub(crate) fn start(mut command: Command, before: &str, after: &str) -> Self {
        let child = command.stdout(Stdio::piped()).process_group(0).spawn();
        let mut child = child.unwrap_or_else(|it| panic!("{command:?}: {it}; see tests/run"));
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("UTF-8");
            let (_, rest) = line.split_once(before)?;
            Some(rest.strip_suffix(after)?.to_owned())
        });
        // Reads the rest of the output, so that a full pipe does not block the process.
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

pub(crate) fn text_of(selector: &str) -> String {
    format!("document.querySelector('{selector}').textContent")
}

/// The page, in a browser of its own.
pub(crate) struct Page {
    pub(crate) driver: WebDriver,
    _chromedriver: Program,
    playground: Program,
}

impl Page {
    pub(crate) const PATH: &str = "/?traffic=clicks&period=5s";

    pub(crate) async fn open() -> Self {
        Self::open_at(playground(), Self::PATH).await
    }

    pub(crate) async fn open_at(playground: Command, path: &str) -> Self {
        let playground = Program::start(playground, "playing on ", "");
        let mut chromedriver = Command::new("chromedriver");
        // Without a port, it chooses one that is free in IPv6, also if it is in use in IPv4.
        chromedriver.arg(format!("--port={}", support::port::free()));
        let chromedriver = Program::start(chromedriver, "successfully on port ", ".");
        let mut wanted = DesiredCapabilities::chrome();
        wanted.set_headless().expect("JSON");
        // The sandbox does not work as root. It is not needed, because the browser opens only this page.
        for argument in ["no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"] {
            wanted.add_arg(&format!("--{argument}")).expect("JSON");
        }
        wanted.set_browser_log_level(LoggingPrefsLogLevel::All).expect("JSON");
        let address = format!("http://127.0.0.1:{}", chromedriver.address);
        let driver = WebDriver::new(address, wanted).await.expect("Chromium starts");
        let page = Self { driver, _chromedriver: chromedriver, playground };
        page.size(1280, 960).await;
        page.goto(path).await;
        page
    }

    /// Opens the page at this path, and waits until it is live.
    pub(crate) async fn goto(&self, path: &str) {
        let address = format!("{}{path}", self.playground.address);
        self.driver.goto(address).await.expect("the page loads");
        // Then it has received an event of the server.
        let waits = "document.querySelectorAll('.lane .next span:last-child:not(:empty)').length";
        self.until(waits, &5).await;
    }

    pub(crate) fn address(&self) -> &str {
        &self.playground.address
    }

    pub(crate) async fn size(&self, width: u64, height: u64) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await;
    }

    pub(crate) async fn cdp(&self, method: &str, parameters: Value) -> Value {
        self.driver.cdp().send_raw(method, parameters).await.expect(method)
    }

    /// Returns the value of an expression on the page.
    pub(crate) async fn value<T: DeserializeOwned>(&self, expression: &str) -> T {
        let answer = self.driver.execute(format!("return {expression}"), Vec::new()).await;
        answer.expect(expression).convert().expect(expression)
    }

    /// Waits until the page shows a text in an element.
    pub(crate) async fn shows(&self, selector: &str, text: &str) {
        self.until(&text_of(selector), &text.to_owned()).await;
    }

    /// Waits until an expression is true.
    pub(crate) async fn is(&self, expression: &str) {
        self.until(expression, &true).await;
    }

    /// Ends the browser, which has logged no mistake.
    pub(crate) async fn close_without_mistakes(self) {
        assert_eq!(self.mistakes().await, [""; 0]);
        self.close().await;
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
            // The browser sends no event for this change.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn find(&self, selector: &str) -> WebElement {
        self.driver.find(By::Css(selector)).await.expect(selector)
    }

    pub(crate) async fn click(&self, selector: &str) {
        self.find(selector).await.click().await.expect(selector);
    }

    /// Selects a choice of a group by a click on its label.
    pub(crate) async fn choose(&self, value: &str) {
        self.click(&format!("label:has([value={value}])")).await;
        self.until(&format!("document.querySelector('[value={value}]').checked"), &true).await;
    }

    pub(crate) async fn fill(&self, field: &str, text: &str) {
        let field = self.find(&format!("#{field}")).await;
        field.clear().await.expect("a field");
        // The page receives an event only for a key, so this types a space into a field that must be empty.
        field.send_keys(if text.is_empty() { " " } else { text }).await.expect("a field");
    }

    /// Presses a key in the element that has the focus.
    pub(crate) async fn press(&self, key: impl Into<TypingData>) {
        self.driver.action_chain().send_keys(key).perform().await.expect("a key");
    }

    /// Waits until the lanes show these numbers of admitted and rejected calls.
    pub(crate) async fn tallies(&self, wanted: [[u64; 2]; 5]) {
        let tallies = "[...document.querySelectorAll('.lane')].map(lane => \
            [...lane.querySelectorAll('.tally b')].map(count => Number(count.textContent)))";
        self.until(tallies, &wanted.map(Vec::from).to_vec()).await;
    }

    /// Returns the errors and warnings that the browser has logged since the last call. The page shows invalid settings
    /// beside their fields: while a value is typed slowly, a part of it can be invalid.
    async fn mistakes(&self) -> Vec<String> {
        let log = self.driver.browser_log().await.expect("a log");
        let severe = log.into_iter().filter(|it| it.level == "SEVERE" || it.level == "WARNING");
        let is_of_settings = |text: &str| text.contains("/settings - ") && text.contains("422");
        severe.map(|entry| entry.message).filter(|text| !is_of_settings(text)).collect()
    }

    pub(crate) async fn close(self) {
        self.driver.clone().quit().await.expect("the browser ends");
    }
}

impl Drop for Page {
    /// Does not quit the browser, which can take minutes after a test has failed. The browser ends with the
    /// process group of chromedriver.
    fn drop(&mut self) {
        let _ = self.driver.clone().leak();
    }
}
