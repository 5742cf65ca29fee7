/* Keeps the live parts of a page fresh and shows the dialogs of its buttons. The server renders and escapes everything;
   this script makes no markup. Without it the pages still show everything, one load at a time.

     <div data-live-ms="3000">                  is fetched again this often while the page is visible,
     <span data-live-ms data-live-from="…">     from elsewhere than the address of the page
     <a data-live href>                         changes the address, and fetches the part instead of the page
     <button data-ask="…">                      opens the dialog that is found there
     <section id="feedq-tap" data-address="…">  shows what is sent from there */
(() => {
  "use strict";

  const part = (id) => document.getElementById(id);
  const live = part("feedq-live");
  const form = part("feedq-filter"), dialog = part("feedq-dialog"), copy = part("feedq-copy");
  const refreshes = Number(live.dataset.liveMs) > 0;
  const TIMEOUT_MS = 40000; // longer than Flower takes at most
  const TAPPED_MAX = 200; // records that are shown
  const asked = new Map(); // part → how often it was fetched: a late answer to an old question is not shown

  function here(address) {
    const where = new URL(address, window.location.href);
    // The link of `feedq up` holds the login. The browser knows it by now, and fetches no address that holds one.
    where.username = where.password = "";
    return where;
  }

  async function fetched(address, more) {
    const wanted = {cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS)};
    const answer = await fetch(here(address), {...wanted, ...more}).catch(() => {
      throw new Error("Flower does not answer.");
    });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok && !found.getElementById("feedq-dialog-answer")) {
      throw new Error(found.getElementById("feedq-said-trouble")?.textContent || "Flower answered " + answer.status + ".");
    }
    return found;
  }

  function put(target, source) {
    // Whoever is at a button or link stays there, if there is still one of the same id or address.
    const focused = target.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = Array.from(target.querySelectorAll("section"), (one) => one.scrollLeft);
    target.replaceChildren(...source.childNodes);
    target.querySelectorAll("section").forEach((one, place) => { one.scrollLeft = scrolled[place] || 0; });
    if (focused) {
      const href = focused.getAttribute("href");
      const links = Array.from(target.querySelectorAll("a"));
      const again = focused.id ? part(focused.id) : links.find((link) => link.getAttribute("href") === href);
      (again || dialog).focus({preventScroll: true});
    }
  }

  function complain(text) {
    part("feedq-trouble").textContent = text;
    part("feedq-trouble").hidden = !text;
    live.classList.toggle("feedq-outdated", Boolean(text));
    part("feedq-refreshed").textContent = text ? "Trying again" : refreshes ? "Live" : "Not refreshing";
    part("feedq-dot").className = "status-dot" + (text ? " status-dot-error" : refreshes ? " status-dot-live" : "");
  }

  async function refresh(target, isWanted) {
    const number = (asked.get(target) || 0) + 1;
    asked.set(target, number);
    const address = here(target.dataset.liveFrom || window.location.href);
    address.searchParams.set("live", isWanted ? "first" : "1");
    const found = await fetched(address).catch((error) => error);
    if (asked.get(target) !== number) {
      return;
    }
    const selection = window.getSelection(); // text that somebody is selecting stays
    const isBeingRead = !selection.isCollapsed && target.contains(selection.anchorNode);
    if (found.body && (isWanted || !isBeingRead)) {
      put(target, found.body);
    }
    if (target === live) {
      complain(found.body ? "" : found.message);
    }
    refreshLater(target, isWanted);
  }

  function refreshLater(target, isSoon) {
    const number = asked.get(target);
    window.setTimeout(() => {
      if (refreshes && !document.hidden && asked.get(target) === number) {
        refresh(target);
      }
    }, isSoon ? 0 : Number(target.dataset.liveMs));
  }

  function go(address, isNewPlace) {
    window.history[isNewPlace ? "pushState" : "replaceState"](null, "", address);
    refresh(live, true);
  }

  function submit(event) {
    event.preventDefault();
    const address = here(form.getAttribute("action"));
    new FormData(form).forEach((value, name) => value && address.searchParams.append(name, value));
    go(address, false);
  }

  live.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-live]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      go(here(link.href), true);
      const fields = Array.from(form ? form.elements : []);
      fields.filter((one) => one.name && one.type !== "checkbox").forEach((one) => {
        one.value = here(link.href).searchParams.get(one.name) || "";
      });
    }
  });

  if (form) {
    form.addEventListener("submit", submit);
    form.addEventListener("input", submit);
  }

  if (copy && navigator.clipboard) { // which pages have that came over TLS, or from this machine
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(here(window.location.href).href);
      copy.textContent = "Copied";
    });
  }

  let pressed = "", sent = 0;

  async function open(button) {
    button.setAttribute("aria-busy", "true");
    const found = await fetched(button.dataset.ask).catch((error) => error);
    button.removeAttribute("aria-busy");
    if (!found.body) {
      complain(found.message);
    } else if (!dialog.open) {
      put(dialog, found.body);
      pressed = button.id;
      dialog.showModal();
      dialog.querySelector("textarea, input:not([type=hidden]), button").focus();
    }
  }

  async function send(isDry) {
    const wanted = dialog.querySelector("form"), number = ++sent, body = new URLSearchParams(new FormData(wanted));
    if (isDry) {
      body.set("dry_run", "true");
    }
    part("feedq-dialog-go").disabled = !isDry;
    const found = await fetched(wanted.action, {method: "POST", body: body}).catch((error) => error);
    const answer = found.body && found.getElementById("feedq-dialog-answer");
    if (answer && answer.dataset.done) {
      part("feedq-done").textContent = answer.dataset.done;
      refresh(live);
    }
    if (number !== sent || !dialog.open) {
      return;
    }
    if (!answer) {
      const advice = isDry ? "" : " Look whether it was done before you try again.";
      part("feedq-dialog-trouble").textContent = found.message + advice;
      part("feedq-dialog-trouble").hidden = part("feedq-dialog-go").disabled = false;
    } else if (answer.dataset.done && !answer.dataset.more) {
      dialog.close();
    } else {
      put(part("feedq-dialog-answer"), answer);
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-ask]");
    if (button) {
      open(button);
    }
  });

  dialog.addEventListener("submit", (event) => {
    if (event.submitter.id === "feedq-dialog-go") {
      event.preventDefault();
      send(false);
    }
  });

  dialog.addEventListener("change", (event) => event.target.name === "reason" || send(true));

  dialog.addEventListener("close", () => {
    // The browser has given the focus back already, unless the button was replaced meanwhile.
    if (!dialog.open && (document.activeElement === document.body || dialog.contains(document.activeElement))) {
      (part(pressed) || part("main-content")).focus();
    }
  });

  function tapOn(tap) {
    // Records of the feed as they land, which the API sends as a stream of events.
    const button = tap.querySelector("button");
    const status = tap.querySelector("[role=status]"), list = tap.querySelector("[role=log]");
    let source = null, unseen = 0;

    function stop(text) {
      source.close();
      source = null;
      button.textContent = "Tap";
      button.setAttribute("aria-pressed", "false");
      status.textContent = text;
    }

    const shown = {
      record: (found) => {
        const line = document.createElement("p"), at = document.createElement("time");
        at.dateTime = found.at;
        at.textContent = found.at.slice(11, 23);
        line.append(at, " " + found.record + (found.cut ? " … (cut: " + found.bytes.toLocaleString("en") + " bytes)" : ""));
        list.prepend(line);
        Array.from(list.children).slice(TAPPED_MAX).forEach((old) => old.remove());
      },
      left_out: (found) => {
        unseen += found.records;
        status.textContent = "Live; " + unseen.toLocaleString("en") + " more landed that are not shown.";
      },
      end: (found) => stop("Ended: " + found.why + "."),
    };

    button.addEventListener("click", () => {
      if (source) {
        stop("Stopped.");
        return;
      }
      unseen = 0;
      list.replaceChildren();
      list.hidden = false;
      button.textContent = "Stop tapping";
      button.setAttribute("aria-pressed", "true");
      status.textContent = "Waiting for records; it takes a few seconds.";
      source = new EventSource(new URL(tap.dataset.address, window.location.origin));
      Object.entries(shown).forEach(([kind, show]) => {
        source.addEventListener(kind, (event) => source && show(JSON.parse(event.data)));
      });
      source.addEventListener("error", () => stop("The connection was refused or broke off."));
    });
  }

  document.documentElement.classList.add("feedq-scripted");
  document.querySelectorAll("#feedq-tap").forEach(tapOn);
  complain(part("feedq-trouble").textContent);
  const parts = document.querySelectorAll("[data-live-ms]");
  parts.forEach((target) => (refreshes && !target.hasChildNodes() ? refresh(target) : refreshLater(target)));
  document.addEventListener("visibilitychange", () => {
    parts.forEach((target) => refreshes && !document.hidden && refresh(target));
  });
  window.addEventListener("popstate", () => window.location.reload());
})();
