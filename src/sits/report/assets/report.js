// Values under the pointer, the finger or the keyboard focus. Everything else on the page works without scripts.
(function () {
  "use strict";
  var tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.appendChild(tip);
  function show(event) {
    var mark = event.target.closest ? event.target.closest("[data-t]") : null;
    if (!mark) { tip.hidden = true; return; }
    tip.textContent = mark.getAttribute("data-t");
    tip.hidden = false;
    var box = mark.getBoundingClientRect();
    var x = event.clientX || box.left + box.width / 2;
    var y = event.clientY || box.top;
    var width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = Math.max(6, Math.min(x + 12, innerWidth - width - 6)) + "px";
    tip.style.top = (y - height - 12 < 6 ? y + 16 : y - height - 12) + "px";
  }
  ["pointermove", "pointerdown", "focusin"].forEach(function (name) { document.addEventListener(name, show); });
  document.addEventListener("focusout", function () { tip.hidden = true; });
  document.addEventListener("scroll", function () { tip.hidden = true; }, { passive: true });
})();
