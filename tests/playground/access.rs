//! The page for each visitor: on a phone, by keyboard alone, in both color schemes.

use serde_json::Value;
use thirtyfour::Key;

use crate::browser::Page;
use crate::{ATTRIBUTE, text_of};

/// Returns the colors without the contrast that WCAG 2.2, 1.4.3 and 1.4.11, require: 4.5 for text, 3 for other visible
/// parts.
pub(crate) const CONTRAST: &str = "(() => {
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
    let order = "traffic threshold period burst rule link forget call algorithm attribute copy";
    assert_eq!(reached.join(" "), order);
    // Arrow keys select a choice in a group.
    page.value::<Value>("document.querySelector('[name=traffic]:checked').focus()").await;
    page.press(Key::Right.value()).await;
    page.until("document.querySelector('[value=steady]').checked", &true).await;
    let admitted = text_of("[data-algorithm=fixed] .tally .admitted b");
    page.until(&format!("Number({admitted}) >= 2"), &true).await;
    page.close().await;
}
