//! The page for each visitor: on a phone, by keyboard alone, with a screen reader, in both color schemes, with reduced
//! motion.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use thirtyfour::Key;

use crate::browser::Page;
use crate::{ATTRIBUTE, text_of};

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
    page.until(lowest, &true).await;
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
    page.until(&format!("{ATTRIBUTE}.includes('99999999')"), &true).await;
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
    let order = [
        "traffic",
        "threshold",
        "period",
        "burst",
        "rule",
        "link",
        "forget",
        "call",
        "algorithm",
        "attribute",
        "copy",
    ];
    assert_eq!(reached, order);
    // Arrow keys select a choice in a group.
    page.value::<Value>("document.querySelector('[name=traffic]:checked').focus()").await;
    page.press(Key::Right.value()).await;
    page.until("document.querySelector('[value=steady]').checked", &true).await;
    let admitted = text_of("[data-algorithm=fixed] .tally .admitted b");
    page.until(&format!("Number({admitted}) >= 2"), &true).await;
    page.close().await;
}

#[tokio::test]
async fn announces_results_to_screen_readers() {
    let page = Page::open().await;
    let tree = page.cdp("Accessibility.getFullAXTree", json!({})).await;
    let nodes: Vec<(String, String, &Value)> = tree["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .filter(|node| node["ignored"] == false)
        .map(|node| {
            let text = |of: &str| node[of]["value"].as_str().unwrap_or_default().to_owned();
            (text("role"), text("name"), node)
        })
        .collect();
    let named = |role: &str| -> Vec<&str> {
        let of_role = nodes.iter().filter(|(its, ..)| its == role);
        of_role.map(|(_, name, _)| name.as_str()).collect()
    };
    assert_eq!(named("RootWebArea"), ["Rate limit playground"]);
    assert_eq!(page.value::<String>("document.documentElement.lang").await, "en");
    assert_eq!(page.value::<u64>("document.querySelectorAll('h1').length").await, 1);
    assert_eq!(named("heading"), ["Rate limit playground", "Decisions", "Use it in your code"]);
    assert_eq!(named("textbox"), ["Threshold", "Period", "Burst of buckets"]);
    assert_eq!(named("button"), ["Copy link", "Start over", "Call", "Copy"]);
    let stories = ["Window’s edge", "Thundering retry", "Slow leak"];
    assert_eq!(
        named("radio"),
        [
            &stories[..],
            &["By hand", "Steady", "Bursts", "Hammering"],
            &["None", "Double", "Blocked", "Exempt"]
        ]
        .concat()
    );
    assert_eq!(named("listitem").len(), 8);
    assert_eq!(named("combobox"), ["Algorithm"]);
    assert_eq!(named("row").len(), 6);
    assert_eq!(named("columnheader").len(), 4);
    assert_eq!(named("rowheader").len(), 5);
    assert_eq!(named("cell").len(), 15);
    assert!(named("rowheader")[0].starts_with("Sliding window"), "{:?}", named("rowheader"));
    let live: BTreeSet<_> = nodes
        .iter()
        .filter(|(.., node)| {
            let properties = node["properties"].as_array();
            properties.is_some_and(|all| {
                all.iter().any(|one| one["name"] == "live" && one["value"]["value"] == "polite")
            })
        })
        .map(|(role, ..)| role.as_str())
        .collect();
    assert!(live.contains("status"), "{live:?}");
    page.close().await;
}

#[tokio::test]
async fn colors_have_enough_contrast() {
    let page = Page::open().await;
    // The contrast that WCAG 2.2, 1.4.3 and 1.4.11, require: 4.5 for text, 3 for other visible parts.
    let contrast = "(() => {
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
    for scheme in ["light", "dark"] {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        page.cdp("Emulation.setEmulatedMedia", features).await;
        page.until(&format!("matchMedia('(prefers-color-scheme: {scheme})').matches"), &true).await;
        assert_eq!(page.value::<Vec<String>>(contrast).await, [""; 0], "{scheme}");
    }
    page.close().await;
}

/// With reduced motion, the page draws twice a second.
#[tokio::test]
async fn reduced_motion_draws_seldom() {
    let page = Page::open().await;
    let features = json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] });
    page.cdp("Emulation.setEmulatedMedia", features).await;
    page.until("matchMedia('(prefers-reduced-motion: reduce)').matches", &true).await;
    page.choose("steady").await;
    let watch = "(() => { window.frames_seen = 0; window.drawn = 0;
        const pen = document.querySelector('.ruler canvas').getContext('2d');
        const clear = pen.clearRect.bind(pen);
        pen.clearRect = (...all) => { window.drawn += 1; clear(...all); };
        const look = () => { window.frames_seen += 1; requestAnimationFrame(look); };
        requestAnimationFrame(look); })()";
    let _: Value = page.value(watch).await;
    page.until("window.drawn >= 3", &true).await;
    let (drawn, frames): (u64, u64) = page.value("[window.drawn, window.frames_seen]").await;
    assert!(drawn * 8 < frames, "{drawn} of {frames} frames");
    page.close().await;
}
