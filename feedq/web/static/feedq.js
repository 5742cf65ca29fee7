/* Keeps the live part of a page fresh: listens to a stream that has it whenever it has changed, and puts it in the
   place of the old one. The server renders and escapes; this script makes no markup. Rates are counted here, from the totals of the
   last few answers. Without it the pages work all the same, one load at a time. */
(function () {
  "use strict";

  var live = document.getElementById("feedq-live");
  var trouble = document.getElementById("feedq-trouble");
  var dot = document.getElementById("feedq-dot");
  var refreshed = document.getElementById("feedq-refreshed");
  var form = document.getElementById("feedq-filter");
  if (!live) {
    return;
  }

  var PILLS = ["worker", "tenant", "label", "connector", "match", "failing"]; // filters that are shown when given
  var FILTERS = ["search", "status", "prefix"]; // what a form of filters may show
  var RATE_WINDOW_S = 12; // Workers report every two seconds: shorter windows would jitter.
  var TIMEOUT_MS = 20000;
  var TYPING_MS = 20; // keys that come together, as when a text is pasted, are one question
  var COPIED_MS = 2000;
  var COUNT_MS = 3000; // problems are counted after what was asked for is there, and again each minute
  var refreshMs = Number(live.dataset.refreshMs);
  var samples = new Map(); // key → [[seconds, records], …], the oldest first
  var byRate = 0; // 1: rows with the highest rate first, -1: with the lowest
  var timer = null;
  var asking = null;
  var source = null; // the stream of events that keeps the page live

  document.documentElement.classList.add("feedq-scripted");

  // -- rates ---------------------------------------------------------------------------------------

  function rateOf(key, now, records) {
    var seen = samples.get(key) || [];
    if (seen.length && (records < seen[seen.length - 1][1] || now < seen[seen.length - 1][0])) {
      seen = [];
    }
    if (!seen.length || now > seen[seen.length - 1][0]) {
      seen.push([now, records]);
    }
    while (seen.length > 2 && now - seen[1][0] >= RATE_WINDOW_S) {
      seen.shift();
    }
    samples.set(key, seen);
    var first = seen[0], last = seen[seen.length - 1];
    return last[0] > first[0] ? (last[1] - first[1]) / (last[0] - first[0]) : null;
  }

  function showRates() {
    var root = live.querySelector("[data-now]");
    var kept = new Set();
    if (!root) {
      return;
    }
    live.querySelectorAll("[data-records]").forEach(function (element) {
      var key = element.dataset.key;
      var rate = rateOf(key, Number(root.dataset.now), Number(element.dataset.records));
      var cell = element.querySelector("[data-rate]");
      kept.add(key);
      element.dataset.rate = rate === null ? -1 : rate;
      if (cell && rate !== null) {
        cell.textContent = (rate > 0 && rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en")) + "/s";
      }
    });
    Array.from(samples.keys()).forEach(function (key) {
      if (!kept.has(key)) {
        samples.delete(key);
      }
    });
  }

  function orderByRate() {
    var button = document.getElementById("feedq-by-rate");
    if (!button) {
      return;
    }
    button.hidden = false;
    button.nextElementSibling.hidden = true;
    if (!byRate) {
      return;
    }
    live.querySelectorAll("[aria-sort]").forEach(function (heading) {
      heading.removeAttribute("aria-sort");
    });
    button.parentElement.setAttribute("aria-sort", byRate > 0 ? "descending" : "ascending");
    var body = live.querySelector("tbody");
    Array.from(body.querySelectorAll("tr[data-rate]")).sort(function (a, b) {
      return byRate * (Number(b.dataset.rate) - Number(a.dataset.rate));
    }).forEach(function (row) {
      body.appendChild(row);
    });
  }

  // -- asking --------------------------------------------------------------------------------------

  function say(text, state) {
    refreshed.textContent = text;
    dot.className = "status-dot" + (state ? " status-dot-" + state : "");
  }

  function complain(text) {
    trouble.textContent = text;
    trouble.hidden = false;
    live.classList.add("feedq-outdated");
    say("Trying again", "error");
  }

  function isBeingRead() {
    // Whoever is selecting text must not lose the selection.
    var selection = window.getSelection();
    return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  }

  function put(html) {
    var focused = live.contains(document.activeElement) ? document.activeElement : null;
    var href = focused && focused.getAttribute("href");
    var id = focused && focused.id;
    var parsed = new DOMParser().parseFromString(html, "text/html");
    live.replaceChildren.apply(live, Array.from(parsed.body.childNodes));
    showRates();
    orderByRate();
    if (focused) {
      var again = (id && document.getElementById(id)) || Array.from(live.querySelectorAll("a")).find(function (link) {
        return link.getAttribute("href") === href;
      });
      if (again) {
        again.focus({preventScroll: true});
      }
    }
  }

  function ask(asked) {
    var address = new URL(window.location.href);
    // The link of `feedq up` holds the login. The browser knows it by now, and fetches no address that holds one.
    address.username = address.password = "";
    var patience = window.setTimeout(function () { asked.abort(); }, TIMEOUT_MS);
    var wanted = {signal: asked.signal, cache: "no-store", credentials: "same-origin", redirect: "error"};
    address.searchParams.set("live", "1");
    return fetch(address, wanted)
      .then(function (answer) {
        return answer.text().then(function (text) {
          if (answer.ok) {
            return text;
          }
          if ((answer.headers.get("Content-Type") || "").startsWith("application/json")) {
            throw new Error(JSON.parse(text).error);
          }
          throw new Error("Flower answered " + answer.status + (answer.status === 401 ? ": load the page again to log in." : "."));
        });
      })
      .finally(function () { window.clearTimeout(patience); });
  }

  function refresh(isWanted) {
    if (asking) {
      asking.abort();
    }
    quiet();
    var asked = asking = new AbortController();
    ask(asked).then(function (html) {
      if (asking !== asked) {
        return;
      }
      arrive(html, isWanted);
    }).catch(function (error) {
      if (asking === asked) {
        complain(error.name === "TypeError" || error.name === "AbortError" ? "Flower does not answer." : error.message);
      }
    }).finally(function () {
      if (asking === asked) {
        asking = null;
        listen();
      }
    });
  }

  function arrive(html, isWanted) {
    trouble.hidden = true;
    live.classList.remove("feedq-outdated");
    say(refreshMs ? "Live" : "Not refreshing", refreshMs ? "live" : "");
    if (isWanted || !isBeingRead()) {
      put(html);
    }
  }

  function quiet() {
    window.clearTimeout(timer);
    if (source) {
      source.close();
      source = null;
    }
  }

  function listen() {
    quiet();
    if (!refreshMs || document.hidden) {
      return;
    }
    var address = new URL(window.location.href);
    address.username = address.password = "";
    address.searchParams.set("live", "stream");
    source = new EventSource(address);
    source.addEventListener("part", function (event) { arrive(JSON.parse(event.data), false); });
    source.addEventListener("trouble", function (event) { complain(JSON.parse(event.data)); });
    source.addEventListener("end", listen);
    source.addEventListener("error", function () {
      if (trouble.hidden) {
        complain("Flower does not answer.");
      }
      // A stream that broke off begins again by itself; one that was refused does not.
      if (source.readyState === EventSource.CLOSED) {
        timer = window.setTimeout(listen, refreshMs);
      }
    });
  }

  // -- what people do ------------------------------------------------------------------------------

  function go(address, isNewPlace) {
    window.history[isNewPlace ? "pushState" : "replaceState"](null, "", address);
    refresh(true);
  }

  live.addEventListener("click", function (event) {
    var link = event.target.closest("a[data-live]");
    if (event.target.closest("#feedq-by-rate")) {
      byRate = byRate === 1 ? -1 : 1;
      orderByRate();
    } else if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      if (link.closest("thead")) {
        byRate = 0;
      }
      go(link.href, true);
      fillForm();
    }
  });

  function fillForm() {
    var given = new URL(window.location.href).searchParams;
    if (form && PILLS.some(function (name) { return given.get(name); })) {
      // The form has to show one filter more or less: only the server knows how.
      window.location.reload();
    } else if (form) {
      FILTERS.forEach(function (name) {
        if (form.elements[name]) {
          form.elements[name].value = given.get(name) || "";
        }
      });
    }
  }

  if (form) {
    var typing = null;
    var submit = function () {
      // The order may have changed since the form was made: only what it shows comes from it.
      var address = new URL(window.location.href);
      FILTERS.concat(PILLS, "offset", "after").forEach(function (name) {
        address.searchParams.delete(name);
      });
      new FormData(form).forEach(function (value, name) {
        if (value && form.elements[name].type !== "hidden") {
          address.searchParams.set(name, value);
        }
      });
      go(address, false);
    };
    form.addEventListener("submit", function (event) {
      event.preventDefault();
      submit();
    });
    form.addEventListener("input", function () {
      window.clearTimeout(typing);
      typing = window.setTimeout(submit, TYPING_MS);
    });
    var copy = document.getElementById("feedq-copy");
    if (copy) {
      copy.hidden = false;
      copy.addEventListener("click", function () { copyLink(copy); });
    }
    window.addEventListener("popstate", function () {
      window.location.reload();
    });
  }

  function copyLink(button) {
    var address = new URL(window.location.href);
    address.username = address.password = "";
    // Only pages that came over TLS, or from this machine, may write into the clipboard.
    var copied = navigator.clipboard ? navigator.clipboard.writeText(address.href) : Promise.reject();
    copied.then(function () {
      button.textContent = "Copied";
    }).catch(function () {
      window.prompt("Copy this link:", address.href);
    }).finally(function () {
      window.setTimeout(function () { button.textContent = "Copy link"; }, COPIED_MS);
    });
  }

  function countProblems() {
    var tab = document.querySelector("[data-tab='problems']");
    if (!tab || !refreshMs || document.hidden) {
      return;
    }
    var address = new URL(tab.href);
    address.username = address.password = "";
    address.searchParams.set("live", "1");
    fetch(address, {cache: "no-store", credentials: "same-origin", redirect: "error"}).then(function (answer) {
      return answer.ok ? answer.text() : Promise.reject();
    }).then(function (html) {
      var count = new DOMParser().parseFromString(html, "text/html").querySelectorAll(".feedq-problem").length;
      tab.textContent = "Problems" + (count ? " (" + count.toLocaleString("en") + ")" : "");
    }).catch(function () {
      tab.textContent = "Problems"; // what was counted may be wrong by now
    });
  }

  document.addEventListener("feedq:changed", function () { refresh(true); });

  document.addEventListener("visibilitychange", function () {
    if (document.hidden) {
      quiet();
    } else {
      refresh();
    }
  });

  showRates();
  orderByRate();
  if (trouble.hidden) {
    say(refreshMs ? "Live" : "Not refreshing", refreshMs ? "live" : "");
  } else {
    say("Trying again", "error");
  }
  window.setTimeout(countProblems, COUNT_MS);
  window.setInterval(countProblems, 20 * COUNT_MS);
  listen();
}());
