// Times in the reader's zone, and live pages. Every page works without this script.

const RETRY = 15_000 // milliseconds until the next try to follow changes, after a refusal
const button = document.getElementById("live")

function localTime(element) {
  const time = new Date(element.dateTime)
  if (isNaN(time)) return
  const today = new Date().toDateString() === time.toDateString()
  const clock = { hour: "2-digit", minute: "2-digit", second: today ? "2-digit" : undefined, hourCycle: "h23" }
  const date = today ? {} : { year: "numeric", month: "short", day: "numeric" }
  element.title = time.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" })
  element.textContent = time.toLocaleString(undefined, { ...date, ...clock })
}

function localTimes(root) {
  root.querySelectorAll("time[datetime]").forEach(localTime)
}

// Where the keyboard is: the same element of the new content gets the focus.
function keyOf(element) {
  return element.id ? `#${CSS.escape(element.id)}`
    : element.getAttribute("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]`
    : element.getAttribute("aria-label") ? `[aria-label="${CSS.escape(element.getAttribute("aria-label"))}"]`
    : null
}

const shown = new Map() // the markup of each region as the daemon sent it, by its id

function replaceRegions(text) {
  const next = new DOMParser().parseFromString(text, "text/html")
  for (const region of document.querySelectorAll("[data-live]")) {
    const update = next.getElementById(region.id)
    if (!update || update.innerHTML === shown.get(region.id)) continue
    const selection = document.getSelection()
    if (!selection.isCollapsed && region.contains(selection.anchorNode)) continue
    const focused = region.contains(document.activeElement) ? keyOf(document.activeElement) : null
    const scrolled = new Map([...region.querySelectorAll(".scroll, pre")].map((box, i) => [i, [box.scrollLeft, box.scrollTop]]))
    const ticked = new Set([...region.querySelectorAll("input:checked")].map((box) => box.value))
    const opened = new Set([...region.querySelectorAll("details[open]")].map((box) => box.id))
    shown.set(region.id, update.innerHTML)
    region.replaceChildren(...update.childNodes)
    localTimes(region)
    region.querySelectorAll("details").forEach((box) => { box.open ||= opened.has(box.id) })
    region.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked ||= ticked.has(box.value) })
    region.querySelectorAll(".scroll, pre").forEach((box, i) => {
      if (scrolled.has(i)) [box.scrollLeft, box.scrollTop] = scrolled.get(i)
    })
    if (focused) region.querySelector(focused)?.focus({ preventScroll: true })
  }
}

let source = null // of events, while the page is seen and followed
let isLoading = false
let isStale = false // something has changed since the last load began
let version = null

async function load() {
  isStale = true
  if (isLoading) return
  isLoading = true
  try {
    while (isStale) {
      isStale = false
      const response = await fetch(location.href, {
        headers: { Accept: "text/html", "X-Metasched-Update": "1" }, // charged to the budget of updates
      })
      if (response.redirected) return location.reload() // the session has ended
      if (response.ok) replaceRegions(await response.text())
      tell(response.ok)
    }
  } catch {
    tell(false)
  } finally {
    isLoading = false
  }
}

function tell(isFollowing) {
  button.classList.toggle("lost", !isFollowing)
  button.textContent = isFollowing ? "Live" : "Not live"
}

function follow() {
  if (source || document.hidden || button.getAttribute("aria-pressed") !== "true") return
  source = new EventSource(button.dataset.changes)
  source.addEventListener("version", (event) => {
    tell(true)
    if (version !== null && version !== event.data) load()
    version = event.data
  })
  source.addEventListener("error", () => {
    tell(false)
    if (source?.readyState === EventSource.CLOSED) { // refused: the browser does not try again
      unfollow()
      setTimeout(() => { load(); follow() }, RETRY)
    }
  })
}

function unfollow() {
  source?.close()
  source = null
}

localTimes(document)
if (button && document.querySelector("[data-live]")) {
  for (const region of document.querySelectorAll("[data-live]")) shown.set(region.id, null)
  button.hidden = false
  button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true"
    button.setAttribute("aria-pressed", String(isOn))
    isOn ? (load(), follow()) : unfollow()
  })
  // a browser has few connections to a host: hidden pages use none
  document.addEventListener("visibilitychange", () => {
    document.hidden ? unfollow() : (load(), follow())
  })
  follow()
}
