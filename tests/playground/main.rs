//! The playground shows the decisions of the library: in a real browser, with a mouse, with a keyboard alone, and
//! on a phone.
//!
//! With `PICTURES=docs/playground`, `opens_with_a_story` saves the pictures that the README shows.

mod browser;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::server::Server;
use thirtyfour::Key;

use self::browser::{Page, playground, text_of};

/// Sets limits with a period so long that the duration of a test does not matter.
async fn set_long_limits(page: &Page) {
    page.fill("threshold", "3").await;
    page.fill("burst", "2").await;
    page.fill("period", "1h").await;
    page.until(PROMISE, &"3 per window of 1 h".to_owned()).await;
}

const PROMISE: &str = "document.querySelector('[data-algorithm=fixed] .promise').textContent";
const ATTRIBUTE: &str = "document.querySelector('#attribute').textContent";

#[tokio::test]
async fn decides_calls_by_the_settings_and_the_rule_of_an_operator() {
    let page = Page::open().await;
    page.is("document.querySelector('#store').hidden").await;
    page.is(&format!("{}.includes('RATELIMIT_REDIS_URL')", text_of("#store-note"))).await;
    set_long_limits(&page).await;
    page.click("#call").await;
    page.tallies([[1, 0]; 5]).await;
    page.press(" ").await;
    page.press(Key::Enter.value()).await;
    page.tallies([[3, 0], [3, 0], [3, 0], [2, 1], [2, 1]]).await;
    page.click("#call").await;
    page.tallies([[3, 1], [3, 1], [3, 1], [2, 2], [2, 2]]).await;

    page.shows("[data-algorithm=sliding] .remaining", "0 of 3 left").await;
    page.shows("[data-algorithm=sliding] .next", "next call passes in 60 min").await;
    // A bucket gains a token in a third of an hour.
    page.shows("[data-algorithm=token_bucket] .next", "next call passes in 20 min").await;
    let news = "Leaky bucket: 2 admitted, 2 rejected, next call passes in 20 min.";
    page.is(&format!("{}.endsWith('{news}')", text_of("#news"))).await;

    // A rule leaves the attribute in the code, and what was counted.
    let left = text_of("[data-algorithm=fixed] .remaining");
    let next = text_of("[data-algorithm=fixed] .next");
    let doubled =
        format!("location.search.endsWith('&rule=double') && {ATTRIBUTE}.includes('= 3,')");
    let blocked = format!("{next} === 'next call passes once it is unblocked'");
    for (rule, shown, also, tallies) in [
        ("double", "3 of 6 left", &*doubled, [[4, 1], [4, 1], [4, 1], [2, 3], [2, 3]]),
        ("blocked", " blocked by the rule", &*blocked, [[4, 2], [4, 2], [4, 2], [2, 4], [2, 4]]),
        ("exempt", " exempt by the rule", "true", [[5, 2], [5, 2], [5, 2], [3, 4], [3, 4]]),
        ("none", "0 of 3 left", "true", [[5, 3], [5, 3], [5, 3], [3, 5], [3, 5]]),
    ] {
        page.choose(rule).await;
        page.until(&left, &shown.to_owned()).await;
        page.is(also).await;
        page.click("#call").await;
        page.tallies(tallies).await;
    }

    page.click("#forget").await;
    page.tallies([[0, 0]; 5]).await;
    page.shows("[data-algorithm=sliding] .remaining", "3 of 3 left").await;

    let loaded: Vec<String> =
        page.value("performance.getEntriesByType('resource').map(entry => entry.name)").await;
    assert!(loaded.len() >= 5, "{loaded:?}");
    assert!(loaded.iter().all(|address| address.starts_with(page.address())), "{loaded:?}");

    // Another tab is another visitor.
    let first = page.driver.window().await.expect("a window");
    let other = page.driver.new_tab().await.expect("a window");
    page.driver.switch_to_window(other).await.expect("a window");
    page.size(1280, 960).await;
    page.goto("/?traffic=clicks").await;
    set_long_limits(&page).await;
    page.click("#call").await;
    page.tallies([[1, 0]; 5]).await;
    page.driver.close_window().await.expect("a window");
    page.driver.switch_to_window(first).await.expect("a window");
    page.tallies([[0, 0]; 5]).await;
    page.close_without_mistakes().await;
}

#[tokio::test]
async fn reports_an_invalid_value_at_its_field() {
    let page = Page::open().await;
    for (field, text, message) in [
        ("threshold", "0", "Threshold must be at least 1: 0 would reject every call"),
        ("threshold", "many", "Threshold must be a whole number from 1 to 999999999999999"),
        ("period", "0", "Period must be at least one microsecond"),
        ("period", "40000d", "Period must be at most 100 years (36,525 days)"),
        ("burst", "0", "Burst must be at least 1: 0 would reject every call"),
        (
            "period",
            "soon",
            "Period must be a number of seconds, or have a unit (d, h, m, s, ms, us): 5, 250ms",
        ),
    ] {
        page.fill(field, text).await;
        page.shows(&format!("#{field}-error"), message).await;
        let invalid = format!("document.querySelector('#{field}').ariaInvalid");
        page.until(&invalid, &"true".to_owned()).await;
        page.fill(field, if field == "burst" { "" } else { "7" }).await;
        page.shows(&format!("#{field}-error"), "").await;
        page.until(&invalid, &"false".to_owned()).await;
    }
    page.fill("period", "100d").await;
    page.until(PROMISE, &"7 per window of 100 d".to_owned()).await;
    page.fill("burst", "4000000000").await;
    let slow =
        "This bucket takes more than 100 years to fill: lower burst or period, or raise threshold";
    page.shows("#burst-error", slow).await;
    // The last valid limit stays in force, and all other settings apply.
    page.until(PROMISE, &"7 per window of 100 d".to_owned()).await;
    page.choose("hammering").await;
    let refused = text_of("[data-algorithm=fixed] .tally .refused b");
    page.is(&format!("Number({refused}) >= 1")).await;
    page.shows("#burst-error", slow).await;
    page.close_without_mistakes().await;
}

#[tokio::test]
async fn shows_the_attribute_and_the_link_of_the_settings() {
    let page = Page::open().await;
    page.fill("threshold", "3").await;
    page.fill("burst", "8").await;
    page.fill("period", "1.5").await;
    page.until(PROMISE, &"3 per window of 1500 ms".to_owned()).await;
    for (algorithm, burst) in [
        ("sliding", ""),
        ("fixed", ""),
        ("sliding_counter", ""),
        ("token_bucket", ", burst = 8"),
        ("leaky_bucket", ", burst = 8"),
    ] {
        page.click(&format!("#algorithm option[value={algorithm}]")).await;
        let amounts = r#"period = "1500ms", threshold = 3"#;
        let attribute = format!(r#"#[rate_limit({amounts}, algo = "{algorithm}"{burst})]"#);
        page.until(ATTRIBUTE, &attribute).await;
    }
    page.fill("burst", "").await;
    let default = r#"#[rate_limit(period = "1500ms", threshold = 3, algo = "leaky_bucket")]"#;
    page.until(ATTRIBUTE, &default.to_owned()).await;

    let names = ["clipboardReadWrite", "clipboardSanitizedWrite"];
    let rights = json!({ "permissions": names, "origin": page.address() });
    page.cdp("Browser.grantPermissions", rights).await;
    page.click("#copy").await;
    page.shows("#copy", "Copied").await;
    page.until("navigator.clipboard.readText()", &default.to_owned()).await;

    // A link has the settings, too.
    page.choose("leak").await;
    page.fill("threshold", "7").await;
    page.fill("burst", "10").await;
    page.fill("period", "5s").await;
    page.until(PROMISE, &"7 per window of 5 s".to_owned()).await;
    page.click("#link").await;
    let settings = "/?traffic=leak&threshold=7&period=5s&burst=10";
    let link = format!("{}{settings}", page.address());
    page.until("navigator.clipboard.readText()", &link).await;
    page.until("location.href", &link).await;
    page.goto(settings).await;
    page.until(PROMISE, &"7 per window of 5 s".to_owned()).await;
    page.until("document.querySelector('#burst').value", &"10".to_owned()).await;
    page.is("document.querySelector('[value=leak]').checked").await;
    // What an address names wrongly is reported as if it had been typed.
    page.goto("/?traffic=nosuch&threshold=%3Cb%3E").await;
    let message = "Threshold must be a whole number from 1 to 999999999999999";
    page.shows("#threshold-error", message).await;
    page.close().await;
}

#[tokio::test]
async fn opens_with_a_story() {
    let page = Page::open_at(playground(), "/").await;
    page.is(&format!("{}.startsWith('The burst around')", text_of("#story"))).await;
    // The fixed window admits four calls before its edge and five after it, the sliding window does not.
    page.is(&format!("Number({}) >= 10", text_of("[data-algorithm=fixed] .admitted b"))).await;
    let refused = format!("Number({})", text_of("[data-algorithm=fixed] .refused b"));
    assert_eq!(page.value::<u64>(&refused).await, 0);
    page.is(&format!("Number({}) >= 4", text_of("[data-algorithm=sliding] .refused b"))).await;

    page.driver.action_chain().move_to(0, 0).perform().await.expect("the mouse is elsewhere");
    for scheme in ["light", "dark"] {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        page.cdp("Emulation.setEmulatedMedia", features).await;
        page.until(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), &true).await;
        assert_eq!(page.value::<Vec<String>>(CONTRAST).await, [""; 0], "{scheme}");
        if let Some(folder) = std::env::var_os("PICTURES") {
            // A frame in the new colours. The path is relative to the root of the workspace.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
            let picture = page.driver.screenshot_as_png().await.expect("a picture");
            std::fs::write(folder.join(format!("{scheme}.png")), &picture).expect("a file");
        }
    }
    page.close_without_mistakes().await;
}

#[tokio::test]
async fn draws_units_and_waits_that_agree_in_each_frame() {
    let page = Page::open().await;
    let watch = "(() => { window.frames_seen = 0; window.wrong = [];
        const look = () => {
            window.frames_seen += 1;
            for (const lane of document.querySelectorAll('.lane')) {
                const [left, next] = ['.remaining', '.next'].map(part => lane.querySelector(part).textContent);
                if (left.startsWith('0 ') === next.endsWith('now')) window.wrong.push(`${left}, ${next}`);
            }
            requestAnimationFrame(look);
        };
        requestAnimationFrame(look); })()";
    let _: Value = page.value(watch).await;
    page.choose("hammering").await;
    page.is("window.frames_seen > 200").await;
    assert_eq!(page.value::<Vec<String>>("window.wrong").await, [""; 0]);
    let blank = "[...document.querySelectorAll('.strip canvas')].map(canvas => canvas.getContext('2d')\
        .getImageData(0, 0, canvas.width, canvas.height).data.every(part => part === 0))";
    assert_eq!(page.value::<Vec<bool>>(blank).await, [false; 5]);
    page.close_without_mistakes().await;
}

#[tokio::test]
async fn falls_back_and_returns_to_redis() {
    let server = Server::start();
    let mut command = playground();
    command.env("RATELIMIT_REDIS_URL", &server.url);
    let page = Page::open_at(command, Page::PATH).await;
    set_long_limits(&page).await;
    page.click("#call").await;
    page.tallies([[1, 0]; 5]).await;
    assert!(server.ttls().is_empty(), "in this process, until Redis is chosen");

    let decided_by = "document.body.dataset.decidedBy";
    page.choose("redis").await;
    page.until(decided_by, &"redis".to_owned()).await;
    page.shows("[data-algorithm=sliding] .remaining", "3 of 3 left").await;
    page.click("#call").await;
    page.tallies([[2, 0]; 5]).await;
    let keys = server.ttls();
    assert_eq!(keys.len(), 5, "{keys:?}");
    assert!(keys.iter().all(|(key, life)| key.starts_with("playground:") && *life > 0), "{keys:?}");

    let port = server.port();
    drop(server);
    page.until(decided_by, &"fallback".to_owned()).await;
    let trouble = format!("{}.startsWith('Redis does not answer.')", text_of("#trouble"));
    page.is(&trouble).await;
    page.click("#call").await;
    page.tallies([[3, 0]; 5]).await;
    let _server = Server::start_on(port);
    page.until(decided_by, &"redis".to_owned()).await;
    page.shows("#trouble", "").await;
    page.close_without_mistakes().await;
}

#[test]
fn reports_why_it_cannot_start() {
    for (name, value, message) in [
        ("PORT", "99999", "error: PORT is `99999`: set it to a number up to 65535"),
        ("HOST", "256.0.0.1", "error: cannot listen on 256.0.0.1:0"),
        ("RATELIMIT_REDIS_URL", "http://127.0.0.1", "error: RATELIMIT_REDIS_URL: "),
    ] {
        let output = playground().env(name, value).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(message), "{said}");
    }
}

// The page for each visitor: on a phone, by keyboard alone, in both color schemes.

/// Returns the colors without the contrast that WCAG 2.2, 1.4.3 and 1.4.11, require: 4.5 for text, 3 for other visible
/// parts.
const CONTRAST: &str = "(() => {
    const style = getComputedStyle(document.documentElement);
    const light = (name) => style.getPropertyValue(`--${name}`).match(/\\w\\w/g).slice(0, 3)
        .map(part => parseInt(part, 16) / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const between = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [['ink', 4.5], ['muted', 4.5], ['admitted', 4.5], ['refused', 4.5], ['edge', 3]]
        .flatMap(([name, least]) => ['paper', 'sheet'].map(ground => [name, ground, least]))
        .filter(([name, ground, least]) => between(light(name), light(ground)) < least)
        .map(([name, ground]) => `${name} on ${ground}`);
})()";

#[tokio::test]
async fn fits_a_phone() {
    let page = Page::open().await;
    page.choose("hammering").await;
    for width in [360, 600, 900, 1280] {
        page.size(width, 780).await;
        page.until("innerWidth", &width).await;
        page.until("document.documentElement.scrollWidth", &width).await;
    }
    // The lanes and their axis are the first thing on a phone; the settings are folded.
    page.size(390, 844).await;
    let lowest = "document.querySelector('.lanes').getBoundingClientRect().bottom \
        <= document.querySelector('.act').getBoundingClientRect().top";
    page.is(lowest).await;
    page.until("document.querySelector('#controls').open", &false).await;
    page.size(360, 780).await;
    page.click("summary").await;
    let small = "[...document.querySelectorAll('button, select, input:not([type=radio]), .segments label')]\
        .filter(control => control.checkVisibility()).filter(control => control.getBoundingClientRect().height < 44 \
            || control.getBoundingClientRect().width < 44).map(control => control.outerHTML)";
    page.until(small, &Vec::<String>::new()).await;
    // The longest line wraps as well.
    page.fill("period", "123456789us").await;
    page.fill("burst", "99999999").await;
    page.click("#algorithm option[value=leaky_bucket]").await;
    page.is(&format!("{ATTRIBUTE}.includes('99999999')")).await;
    page.until("document.documentElement.scrollWidth", &360).await;
    page.close().await;
}

#[tokio::test]
async fn is_usable_by_keyboard_alone() {
    let page = Page::open().await;
    let focus = "document.activeElement.id || document.activeElement.name || ''";
    let mut reached = Vec::new();
    loop {
        page.press(Key::Tab.value()).await;
        let at: String = page.value(focus).await;
        if at.is_empty() || reached.contains(&at) {
            break;
        }
        let outline = "getComputedStyle(document.activeElement.type === 'radio' \
            ? document.activeElement.nextElementSibling : document.activeElement).outlineStyle";
        page.until(outline, &"solid".to_owned()).await;
        reached.push(at);
    }
    let order = "traffic threshold period burst rule link forget call algorithm attribute copy";
    assert_eq!(reached.join(" "), order);
    // Arrow keys select a choice in a group.
    page.value::<Value>("document.querySelector('[name=traffic]:checked').focus()").await;
    page.press(Key::Right.value()).await;
    page.is("document.querySelector('[value=steady]').checked").await;
    let admitted = text_of("[data-algorithm=fixed] .tally .admitted b");
    page.is(&format!("Number({admitted}) >= 2")).await;
    page.close().await;
}
